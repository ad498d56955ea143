import { once } from 'node:events'
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net'
import type { WebSocket } from 'ws'
import { request, type Session } from '../client.ts'
import { CommandError } from '../errors.ts'
import { printResult, sanitize } from '../output.ts'
import { openSocket, sendFlushed } from '../socket.ts'
import { type SandboxCli, sandboxPath } from './find.ts'

export interface PortPair {
  /** 0 picks any free port. */
  local: number
  remote: number
}

const host = '127.0.0.1'

/** The API has no half-close. After the local side has ended, the connection is closed when it is idle for this time. */
const lingerMs = 5000

interface Tunnel {
  session: Session
  path: string
  port: number
  warn(message: string): void
}

/** Listens until the process ends. */
export async function serveProxy(cli: SandboxCli, name: string, pairs: PortPair[]): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  await request(session, 'GET', sandboxPath(name)) // reports a missing sandbox before the first connection
  const warn = (message: string) => terminal.note(sanitize(message))
  const tunnels = pairs.map(({ local, remote }) => {
    return { local, tunnel: { session, path: `${sandboxPath(name)}/proxy`, port: remote, warn } }
  })
  const servers: Server[] = []
  try {
    for (const { local, tunnel } of tunnels) servers.push(await listen(local, tunnel))
  } catch (error) {
    for (const server of servers) server.close()
    throw error
  }
  const ports = servers.map((server, index) => {
    return { host, local: (server.address() as AddressInfo).port, remote: pairs[index]!.remote }
  })
  printResult(terminal, ports, () =>
    ports
      .map(({ local, remote }) => `Listening on ${host}:${local} for port ${remote} of ${sanitize(name)}.`)
      .join('\n'),
  )
  await Promise.all(servers.map((server) => once(server, 'close')))
}

async function listen(port: number, tunnel: Tunnel): Promise<Server> {
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (local) => {
    connectTunnel(local, tunnel).catch((error: Error) => {
      tunnel.warn(`port ${tunnel.port}: ${error.message}`)
      local.destroy()
    })
  })
  try {
    await once(server.listen(port, host), 'listening')
    return server
  } catch (error) {
    throw new CommandError(describeListenError(port, error as NodeJS.ErrnoException), { cause: error })
  }
}

function describeListenError(port: number, { code, message }: NodeJS.ErrnoException): string {
  if (code === 'EADDRINUSE')
    return `port ${port} on this machine is in use; choose another as local:remote, or 0:remote for any free port`
  if (code === 'EACCES') return `port ${port} on this machine needs root; choose another as local:remote`
  return `cannot listen on port ${port}: ${message}`
}

/** Connects one local connection to the port in the sandbox. */
async function connectTunnel(local: Socket, { session, path, port }: Tunnel): Promise<void> {
  const ended = new Promise<void>((resolve) => local.once('close', () => resolve()))
  local.on('error', () => local.destroy()) // the local client has disconnected
  const connected = Promise.withResolvers<void>()
  let onData: ((data: Buffer) => void) | undefined
  const socket = await openSocket(session, path, (data, isBinary) => {
    if (isBinary) onData?.(data)
    else readStatus(String(data), connected)
  })
  socket.once('close', () => connected.reject(new CommandError('the connection was lost')))
  void ended.then(() => socket.close())
  await sendFlushed(socket, JSON.stringify({ host: 'localhost', port }))
  onData = forwardOutput(socket, local)
  await connected.promise
  forwardInput(socket, local)
}

function readStatus(text: string, connected: PromiseWithResolvers<void>): void {
  const { status, error } = JSON.parse(text) as { status?: string; error?: string }
  if (status === 'connected') connected.resolve()
  else connected.reject(new CommandError(error ?? 'the sandbox refused the connection'))
}

/** Pauses the WebSocket while the local client reads more slowly than data arrives. */
function forwardOutput(socket: WebSocket, local: Socket): (data: Buffer) => void {
  socket.once('close', (code) => {
    if (code === 1011) local.resetAndDestroy()
    else local.end(() => local.destroy())
  })
  return (data) => {
    if (local.destroyed || local.write(data)) return
    socket.pause()
    local.once('drain', () => socket.resume())
    local.once('close', () => socket.resume())
  }
}

function forwardInput(socket: WebSocket, local: Socket): void {
  local.on('data', (data: Buffer) => {
    local.pause()
    void sendFlushed(socket, data).then(() => local.resume())
  })
  local.once('end', () => {
    const close = () => socket.close()
    let timer = setTimeout(close, lingerMs)
    socket.on('message', () => {
      clearTimeout(timer)
      timer = setTimeout(close, lingerMs)
    })
    socket.once('close', () => clearTimeout(timer))
  })
  local.resume()
}
