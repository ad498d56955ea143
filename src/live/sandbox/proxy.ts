// Connections to listeners in a sandbox. The host name that a client sends is resolved and dialled inside the sandbox: in
// the network of the host it would reach the listeners of the platform and other sandboxes.
import { connect, isIPv4, isIPv6, type Socket } from 'node:net'
import { Duplex } from 'node:stream'
import { BoxFileError, type BoxHelper, BoxUnavailable } from '../../drivers/box/driver.ts'
import { BerthError, badRequest, unavailable } from '../../model/errors.ts'
import { boxSpec } from '../../model/sandbox/box.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import type { LiveContext } from '../context.ts'

const connectSeconds = 10
const localNames = new Set(['', 'localhost', '127.0.0.1', '::1', '[::1]'])
const maxConnections = 512
const connections = new Map<string, number>()

/** Returns an established connection, which the caller must destroy. */
export async function dialSandbox(ctx: LiveContext, sandbox: Sandbox, host: string, port: number): Promise<Duplex> {
  if (!Number.isInteger(port) || port < 1 || port > 65_535) throw badRequest('port must be from 1 to 65535')
  const targets = targetsOf(host)
  const release = countConnection(sandbox.id)
  try {
    const connection = await dial(ctx, sandbox, host, port, targets)
    connection.once('close', release)
    return connection
  } catch (error) {
    release()
    throw apiError(error, host || 'localhost', port)
  }
}

function countConnection(id: string): () => void {
  const others = connections.get(id) ?? 0
  if (others >= maxConnections)
    throw unavailable(`the sandbox has ${maxConnections} connections through the proxy already`)
  connections.set(id, others + 1)
  return () => {
    const left = connections.get(id)! - 1
    if (left > 0) connections.set(id, left)
    else connections.delete(id)
  }
}

/** The targets that `dial.pl` tries in order. */
export function targetsOf(host: string): string[] {
  if (localNames.has(host)) return ['v4:7f000001', `v6:${'0'.repeat(31)}1`]
  const bare = host.replace(/^\[(.*)\]$/, '$1')
  if (isIPv4(bare))
    return [
      `v4:${bare
        .split('.')
        .map((part) => Number(part).toString(16).padStart(2, '0'))
        .join('')}`,
    ]
  if (isIPv6(bare) && !bare.includes('%')) return [`v6:${hexOf(bare)}`]
  if (!/^[a-z0-9_]([a-z0-9_.-]{0,252})$/i.test(bare)) throw badRequest('host is not an address or a name')
  return [`name:${bare}`]
}

/** The 32 hex digits of an IPv6 address in any notation. */
function hexOf(address: string): string {
  const plain = new URL(`http://[${address}]/`).hostname.slice(1, -1)
  const [head = '', tail] = plain.split('::')
  const groups = (text: string | undefined) => (text ? text.split(':') : [])
  const zeros = tail === undefined ? 0 : 8 - groups(head).length - groups(tail).length
  return [...groups(head), ...Array<string>(zeros).fill('0'), ...groups(tail)]
    .map((group) => group.padStart(4, '0'))
    .join('')
}

async function dial(
  ctx: LiveContext,
  sandbox: Sandbox,
  host: string,
  port: number,
  targets: string[],
): Promise<Duplex> {
  const spec = boxSpec(sandbox)
  const address = ctx.boxes.addressOf(spec)
  // A box without a network of its own has only the address of the host.
  if (localNames.has(host) && !address.startsWith('127.')) {
    const direct = await dialAddress(address, port)
    if (direct) return direct
  }
  return dialInside(ctx.boxes.startDialHelper(spec, { port, timeoutSeconds: connectSeconds, targets }))
}

/** Undefined when the connection is refused: a program may listen on ::1, which can only be dialled from inside. */
function dialAddress(host: string, port: number): Promise<Socket | undefined> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host, port, noDelay: true, keepAlive: true })
    const timer = setTimeout(() => socket.destroy(systemError('ETIMEDOUT')), connectSeconds * 1000)
    const failed = (error: NodeJS.ErrnoException) => {
      clearTimeout(timer)
      if (error.code === 'ECONNREFUSED') resolve(undefined)
      else reject(error)
    }
    socket.once('error', failed)
    socket.once('connect', () => {
      clearTimeout(timer)
      socket.off('error', failed)
      resolve(socket)
    })
  })
}

function systemError(code: string): Error {
  return Object.assign(new Error(code), { code })
}

async function dialInside(helper: BoxHelper): Promise<Duplex> {
  try {
    await helper.next()
  } catch (error) {
    helper.end()
    throw error
  }
  const connection = Duplex.from({ readable: helper.bytes(), writable: helper.input })
  connection.once('close', () => helper.end())
  return connection
}

const reasons: Record<string, string> = {
  ECONNREFUSED: 'nothing listens there',
  ETIMEDOUT: `no answer within ${connectSeconds} s`,
  EHOSTUNREACH: 'there is no such host, or no route to it',
  ENETUNREACH: 'there is no route to it',
}

function apiError(error: unknown, host: string, port: number): unknown {
  if (error instanceof BerthError) return error
  const code = error instanceof BoxFileError ? error.code : (error as NodeJS.ErrnoException).code
  if (error instanceof BoxUnavailable) return unavailable(error.message)
  if (code === undefined) return error
  return unavailable(`cannot connect to ${host}:${port}: ${reasons[code] ?? code}`, error)
}
