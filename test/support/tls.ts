import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { type ClientHttp2Session, connect as connectHttp2 } from 'node:http2'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { connect } from 'node:tls'

/** Creates a key and a self-signed certificate for this name. */
export function makePair(host: string): { cert: string; key: string } {
  const directory = mkdtempSync(join(tmpdir(), 'berth-tls-'))
  try {
    const [key, cert] = [join(directory, 'key'), join(directory, 'crt')]
    const names = ['-subj', `/CN=${host}`, '-addext', `subjectAltName=DNS:${host}`]
    const kind = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-noenc']
    execFileSync('openssl', ['req', '-x509', ...kind, '-keyout', key, '-out', cert, ...names], { stdio: 'ignore' })
    return { cert: readFileSync(cert, 'utf8'), key: readFileSync(key, 'utf8') }
  } finally {
    rmSync(directory, { recursive: true, force: true })
  }
}

/** Connects to a local port without verifying its certificate. */
export function openHttp2(host: string, port: number): ClientHttp2Session {
  const session = connectHttp2(`https://${host}:${port}`, {
    createConnection: () => connect({ port, servername: host, ALPNProtocols: ['h2'], rejectUnauthorized: false }),
  })
  session.on('error', () => {})
  return session
}

export async function askHttp2(session: ClientHttp2Session, headers: Record<string, string>, body?: Buffer) {
  const stream = session.request(headers, { endStream: body === undefined })
  if (body) stream.end(body)
  let trailers: object = {}
  stream.on('trailers', (given) => {
    trailers = given
  })
  const [answer] = await once(stream, 'response')
  const chunks: Buffer[] = []
  for await (const chunk of stream) chunks.push(chunk)
  return { headers: answer, body: Buffer.concat(chunks), trailers }
}
