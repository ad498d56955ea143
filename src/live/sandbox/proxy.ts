// Connections to what listens inside a sandbox. A client names the host, and it is always one as seen from inside: from
// the host's own network it would be a way to the platform's listeners and to other sandboxes.
import { connect, isIPv4, isIPv6, type Socket } from 'node:net'
import { Duplex } from 'node:stream'
import { BoxFileError } from '../../drivers/box/driver.ts'
import { BoxHelper, BoxUnavailable } from '../../drivers/box/enter/helper.ts'
import { boxSpec } from '../../drivers/box/spec.ts'
import { BerthError, badRequest, unavailable } from '../../model/errors.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import type { LiveContext } from '../context.ts'

const connectSeconds = 10
const localNames = new Set(['', 'localhost', '127.0.0.1', '::1', '[::1]'])
const maxConnections = 512
const connections = new Map<string, number>()

/** A connection that stands. Whoever gets it destroys it. */
export async function dialSandbox(ctx: LiveContext, sandbox: Sandbox, host: string, port: number): Promise<Duplex> {
  if (!Number.isInteger(port) || port < 1 || port > 65_535) throw badRequest('port must be from 1 to 65535')
  const targets = targetsOf(host)
  const giveBack = count(sandbox.id)
  try {
    const connection = await dial(ctx, sandbox, host, port, targets)
    connection.once('close', giveBack)
    return connection
  } catch (error) {
    giveBack()
    throw asRefusal(error, host || 'localhost', port)
  }
}

function count(id: string): () => void {
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

/** What box-dial.pl is to try, in order. */
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

/** All 32 digits of an address, from any of the ways to write it. */
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
  // A box without a network of its own has no address but the host's.
  if (localNames.has(host) && !address.startsWith('127.')) {
    const direct = await dialAddress(address, port)
    if (direct) return direct
  }
  return dialInside(
    new BoxHelper(ctx.boxes, spec, 'box/enter/dial.pl', [String(port), String(connectSeconds), ...targets]),
  )
}

/** Undefined when nothing listens there; something may on the other loopback address, which has no way in from outside. */
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
  EHOSTUNREACH: 'there is no such host, or no way to it',
  ENETUNREACH: 'there is no way to it',
}

function asRefusal(error: unknown, host: string, port: number): unknown {
  if (error instanceof BerthError) return error
  const code = error instanceof BoxFileError ? error.code : (error as NodeJS.ErrnoException).code
  if (error instanceof BoxUnavailable) return unavailable(error.message)
  if (code === undefined) return error
  return unavailable(`cannot connect to ${host}:${port}: ${reasons[code] ?? code}`, error)
}
