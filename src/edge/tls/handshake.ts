// TLS as the ports of apps ask for it. Which host a client means is read before it is answered, so that ports of apps
// that share an address may differ as well.
import { createServer, type SecureVersion, type Server, type TLSSocket } from 'node:tls'
import type { MachinePort } from '../../model/app/machine-config.ts'
import type { Certificates } from './certificate.ts'

export interface EdgeTls {
  /** For names that have no certificate of their own. */
  cert: string
  key: string
  /** Nothing else is spoken on the port of the edge. */
  isRequired: boolean
  certificates: Pick<Certificates, 'find'>
}

export interface TlsRules {
  /** Protocols inside of it, the best first; without any none is agreed on. */
  alpn: string[]
  minVersion: SecureVersion
  maxVersion: SecureVersion
}

const versions = ['TLSv1.2', 'TLSv1.3'] as const
const maxProtocols = 16

export const webRules: TlsRules = tlsRulesOf(undefined, true)

/** What cannot be spoken is left out, and all of it means what is usual. */
export function tlsRulesOf(options: MachinePort['tls_options'], isHttp: boolean): TlsRules {
  const named = options?.alpn?.filter((name) => name !== '' && Buffer.byteLength(name) <= 255).slice(0, maxProtocols)
  const spoken = versions.filter((version) => options?.versions?.includes(version))
  return {
    alpn: named?.length ? named : isHttp ? ['h2', 'http/1.1'] : [],
    minVersion: spoken[0] ?? versions[0],
    maxVersion: spoken.at(-1) ?? versions[1],
  }
}

const handshakeMillis = 10_000
/** Owners may think of any number of rules; a server is made anew in a moment. */
const maxServers = 100

/** They never listen themselves: they make connections that speak TLS out of ones that do not yet. */
export function openTls(tls: EdgeTls, serve: (socket: TLSSocket) => void): (rules: TlsRules) => Server {
  const servers = new Map<string, Server>()

  function open({ alpn, minVersion, maxVersion }: TlsRules): Server {
    const server = createServer(
      {
        ...(alpn.length > 0 && { ALPNProtocols: alpn }),
        minVersion,
        maxVersion,
        cert: tls.cert,
        key: tls.key,
        handshakeTimeout: handshakeMillis,
        SNICallback: (name, done) => done(null, tls.certificates.find(name)),
      },
      serve,
    )
    server.on('tlsClientError', (_error, socket) => socket.destroy())
    return server
  }

  function serverOf(rules: TlsRules): Server {
    const key = JSON.stringify(rules)
    const known = servers.get(key)
    if (known) return known
    if (servers.size >= maxServers) servers.clear()
    const server = open(rules)
    servers.set(key, server)
    return server
  }

  serverOf(webRules) // what is wrong with the certificate is known from the beginning
  return serverOf
}

export const handshakeByte = 0x16
const recordHead = 5
const mostOfRecord = 16_384
/** Its kind and length, a version and random bytes. */
const helloHead = 38
const serverNameKind = 0

/** The host that a client asks for by the first record it sends: undefined until all of that is there, empty for none. */
export function readServerName(bytes: Buffer): string | undefined {
  if (bytes.length > 0 && bytes[0] !== handshakeByte) return ''
  if (bytes.length < recordHead) return undefined
  const end = recordHead + bytes.readUInt16BE(3)
  if (end > recordHead + mostOfRecord) return ''
  if (bytes.length < end) return undefined
  try {
    return nameIn(bytes.subarray(recordHead, end))
  } catch {
    return '' // its lengths lead beyond its end, which whoever speaks TLS will refuse
  }
}

function nameIn(hello: Buffer): string {
  let at = helloHead
  at += 1 + hello.readUInt8(at) // the session
  at += 2 + hello.readUInt16BE(at) // ciphers
  at += 1 + hello.readUInt8(at) // compressions
  at += 2 // the length of what follows
  while (at < hello.length) {
    const [kind, length] = [hello.readUInt16BE(at), hello.readUInt16BE(at + 2)]
    at += 4
    // A list, of which the first entry is the only one in use: its kind, its length and the name.
    if (kind === serverNameKind) return hello.toString('latin1', at + 5, at + 5 + hello.readUInt16BE(at + 3))
    at += length
  }
  return ''
}
