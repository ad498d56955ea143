// Where a request comes from. A connection shows only the address of the last proxy; what that proxy says about the client is
// believed if the operator trusts it. Each proxy appends the address of its own peer to X-Forwarded-For, so the list is read
// from the right, and everything to the left of the first address that is not a trusted proxy may be invented.
import { isIP } from 'node:net'
import type { Peer } from '../types.ts'
import { type RequestHead, readHost } from './message.ts'
import { splitList } from './syntax.ts'

export interface RequestOrigin {
  /** The address of the client. */
  client: string
  /** The addresses that the request has passed, the client's first. */
  chain: string
  proto: 'http' | 'https'
  /** The host and port that the client asked for. */
  host: string
  port: number
}

export function readOrigin(head: Pick<RequestHead, 'fields' | 'authority'>, peer: Peer): RequestOrigin {
  const received = joinFields(head, 'x-forwarded-for')
  const last = (name: string) => (peer.trusted ? splitList(joinFields(head, name)).at(-1) : undefined)
  const host = last('x-forwarded-host')
  return {
    client: findClient(received, peer),
    chain: received === '' ? peer.address : `${received}, ${peer.address}`,
    proto: readProto(last('x-forwarded-proto')) ?? (peer.secure ? 'https' : 'http'),
    host: host !== undefined && readHost(host) !== undefined ? host : head.authority,
    port: readPort(last('x-forwarded-port')) ?? peer.port,
  }
}

/** True if the client used HTTPS, also if only a trusted proxy says so. */
export function isSecureRequest(head: Pick<RequestHead, 'fields'>, peer: Peer): boolean {
  if (peer.secure || !peer.trusted) return peer.secure
  return readProto(splitList(joinFields(head, 'x-forwarded-proto')).at(-1)) === 'https'
}

/** The values of all fields with this name, as one list. */
function joinFields({ fields }: Pick<RequestHead, 'fields'>, name: string): string {
  let joined = ''
  for (let index = 1; index < fields.length; index += 3) {
    if (fields[index] === name && fields[index + 1] !== '') joined += `${joined && ', '}${fields[index + 1]}`
  }
  return joined
}

function findClient(received: string, { address, trusted, proxies }: Peer): string {
  let client = address
  if (!trusted || received === '') return client
  const hops = splitList(received)
  for (let index = hops.length - 1; index >= 0; index--) {
    const hop = readAddress(hops[index]!)
    if (hop === undefined) break
    client = hop
    if (!proxies?.has(hop)) break
  }
  return client
}

/** Some proxies append the port, and put IPv6 addresses in brackets. */
function readAddress(text: string): string | undefined {
  const [, bracketed, plain] = /^(?:\[([0-9A-Fa-f:.]+)\](?::\d{1,5})?|(\d+\.\d+\.\d+\.\d+):\d{1,5})$/.exec(text) ?? []
  const address = (bracketed ?? plain ?? text).replace(/^::ffff:(?=\d+\.)/i, '')
  return isIP(address) === 0 || address.includes('%') ? undefined : address
}

function readProto(text: string | undefined): 'http' | 'https' | undefined {
  const lower = text?.toLowerCase()
  return lower === 'http' || lower === 'https' ? lower : undefined
}

function readPort(text: string | undefined): number | undefined {
  const port = /^\d{1,5}$/.test(text ?? '') ? Number(text) : 0
  return port >= 1 && port <= 65_535 ? port : undefined
}
