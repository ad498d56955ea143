import { createPrivateKey, X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { openDatabase } from '../../store/db.ts'
import { type Config, type Listen, refuseOpenListeners } from '../config.ts'
import { addressText, inspectListen, type Listener } from '../listen.ts'
import { asRoot, type Finding, ok, problem, warning } from './finding.ts'

export function checkTls(config: Config): Finding {
  try {
    refuseOpenListeners(config)
  } catch (error) {
    const fix = 'set BERTH_TLS_CERT and BERTH_TLS_KEY, or BERTH_INSECURE=on behind a proxy that terminates TLS'
    return problem((error as Error).message, 'Tokens would be sent in clear text; the platform does not start.', fix)
  }
  if (!config.tls)
    return ok(config.insecure ? 'none, because of BERTH_INSECURE=on' : 'none; the listeners are on loopback')
  return checkCertificate(config.tls)
}

const dayMs = 24 * 3600 * 1000

function checkCertificate({ certFile, keyFile }: NonNullable<Config['tls']>): Finding {
  const unusable = (found: string, fix: string) => problem(found, 'The listeners cannot use TLS.', fix)
  const certificate = readParsed(certFile, (content) => new X509Certificate(content))
  if (typeof certificate === 'string') return unusable(certificate, 'set BERTH_TLS_CERT to a certificate in PEM format')
  const key = readParsed(keyFile, (content) => createPrivateKey(content))
  if (typeof key === 'string') return unusable(key, 'set BERTH_TLS_KEY to a private key in PEM format')
  if (!certificate.checkPrivateKey(key))
    return unusable(`${keyFile} is not the key of ${certFile}`, 'set both to files of the same pair')
  const [from, to] = [certificate.validFromDate, certificate.validToDate]
  const renew = `renew ${certFile} and restart Berth`
  const refused = 'Clients refuse the certificate.'
  if (from.getTime() > Date.now())
    return problem(`${certFile} is not valid before ${from.toISOString()}`, refused, renew)
  if (to.getTime() < Date.now()) return problem(`${certFile} expired at ${to.toISOString()}`, refused, renew)
  const found = `${certFile}, valid until ${to.toISOString()}`
  if (to.getTime() < Date.now() + 14 * dayMs) return warning(found, 'Clients will refuse the certificate soon.', renew)
  return ok(found)
}

/** Returns the parsed file, or a message that says why it cannot be used. */
function readParsed<T>(file: string, parse: (content: Buffer) => T): T | string {
  let content: Buffer
  try {
    content = readFileSync(file)
  } catch (error) {
    return `${file} cannot be read: ${(error as NodeJS.ErrnoException).code}`
  }
  try {
    return parse(content)
  } catch {
    return `${file} does not hold valid PEM data`
  }
}

export async function checkDatabase(url: string | undefined): Promise<Finding> {
  if (url === undefined) return ok("the platform's own")
  const address = describeDatabase(url)
  const db = openDatabase({ connectionString: url, max: 1, connectionTimeoutMillis: 1_500 })
  try {
    const { rows } = await db.query('show server_version')
    return ok(`PostgreSQL ${rows[0].server_version} at ${address}`)
  } catch (error) {
    const { message, cause } = error as Error
    return problem(
      `${address} does not answer: ${cause instanceof Error ? cause.message || message : message}`,
      'The platform needs it for its state and does not start.',
      'start that database, or correct BERTH_DATABASE_URL',
    )
  } finally {
    void db.close()
  }
}

/** Describes the database without user and password. */
function describeDatabase(url: string): string {
  if (!URL.canParse(url)) return 'BERTH_DATABASE_URL'
  const { hostname, port, pathname, searchParams } = new URL(url)
  return `${searchParams.get('host') ?? hostname}${port && `:${port}`}${pathname}`
}

export async function checkListen(part: Listener, listen: Listen, home: string): Promise<Finding> {
  const address = addressText(listen)
  const found = await inspectListen(part, listen, home)
  if (found.is === 'free')
    return ok(listen.port === 0 ? `${address}; a free port is chosen at start` : `${address} is free`)
  if (found.is === 'own') return ok(`${address}, in use by this platform`)
  const listCommand = `; to see which process listens: ${asRoot(`ss -ltnp 'sport = :${listen.port}'`)}`
  return problem(
    `${address} ${found.why}`,
    'The platform cannot listen there and does not start.',
    `set ${found.setting} to another address${found.code === 'EADDRINUSE' ? listCommand : ''}`,
  )
}
