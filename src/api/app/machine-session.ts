import { prepareMachineSession } from '../../live/app/machine-session.ts'
import { commandWords } from '../../model/sandbox/exec.ts'
import type { SocketRoute } from '../http/route.ts'
import { startOrClose } from '../sandbox/exec.ts'
import { serveSession } from '../sandbox/exec-socket.ts'

/** Parameters that decide, beside the words of the command, what is run. */
const furtherParameters = ['env', 'dir']

export const machineSessionSockets: SocketRoute[] = [
  {
    path: '/v1/apps/{app_name}/machines/{machine_id}/exec',
    id: 'machineExecSocket',
    tag: 'Machines',
    summary: 'Run a command in a machine, with or without a terminal',
    targets: ({ params, search }) => [
      { app: params.app_name!, machine: params.machine_id!, command: commandOf(search) },
    ],
    open: async ({ ctx, params, search }) => {
      const start = await prepareMachineSession(ctx, params.app_name!, params.machine_id!, search)
      return {
        run: (socket) => {
          const session = startOrClose(socket, start)
          if (session) serveSession(socket, { ctx, session, isOwner: true })
        },
      }
    },
  },
]

/** Tokens that are limited to some commands do not permit them with another environment or directory. */
function commandOf(search: URLSearchParams): string[] {
  return furtherParameters.some((name) => search.has(name)) ? [] : commandWords(search)
}
