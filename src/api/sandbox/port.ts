import { watchPorts } from '../../live/sandbox/port.ts'
import { openSandbox } from '../../live/sandbox/sandbox.ts'
import type { SocketRoute } from '../http/route.ts'

/** A client with this much unread output counts as disconnected. An event has about a hundred bytes. */
const maxUnsentBytes = 4 * 1024 * 1024

export const portSockets: SocketRoute[] = [
  {
    path: '/v1/sandboxes/{name}/ports/watch',
    id: 'watchPorts',
    tag: 'Ports',
    summary: 'Watch the open ports of a sandbox',
    action: 'read',
    open: async ({ ctx, params }) => {
      const sandbox = await openSandbox(ctx, params.name!, 'read')
      return {
        run: (socket) => {
          const stop = watchPorts(ctx, sandbox, (event) => {
            if (socket.bufferedAmount > maxUnsentBytes) socket.terminate()
            else socket.send(JSON.stringify(event))
          })
          socket.once('close', stop)
        },
      }
    },
  },
]
