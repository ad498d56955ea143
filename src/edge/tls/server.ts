import { createServer, type SecureContext, type Server, type TLSSocket } from 'node:tls'
import { type TlsRules, webTlsRules } from './rules.ts'

export interface EdgeTls {
  /** The default certificate, for host names that have none of their own. */
  cert: string
  key: string
  /** The edge's port accepts TLS only. */
  isRequired: boolean
  certificates: { find(servername: string): SecureContext | undefined }
}

const handshakeTimeoutMs = 10_000
/** App owners can configure any number of different rules; a discarded server is recreated cheaply. */
const maxServers = 100

/** Returns a function that gives the TLS server for some rules. The servers do not listen: they are handed sockets. */
export function openTlsServers(tls: EdgeTls, serve: (socket: TLSSocket) => void): (rules: TlsRules) => Server {
  const servers = new Map<string, Server>()

  function open({ alpn, minVersion, maxVersion }: TlsRules): Server {
    const server = createServer(
      {
        ...(alpn.length > 0 && { ALPNProtocols: alpn }),
        minVersion,
        maxVersion,
        cert: tls.cert,
        key: tls.key,
        handshakeTimeout: handshakeTimeoutMs,
        SNICallback: (name, done) => done(null, tls.certificates.find(name)),
      },
      serve,
    )
    server.on('tlsClientError', (_error, socket) => socket.destroy())
    return server
  }

  function findServer(rules: TlsRules): Server {
    const key = JSON.stringify(rules)
    const known = servers.get(key)
    if (known) return known
    if (servers.size >= maxServers) servers.clear()
    const server = open(rules)
    servers.set(key, server)
    return server
  }

  findServer(webTlsRules) // fails at start if the certificate is invalid
  return findServer
}
