// TLS certificates, signed by a certificate authority of the platform itself. Clients get the authority's certificate.
import { createPrivateKey, randomBytes, X509Certificate } from 'node:crypto'
import { chmodSync, chownSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { isIP } from 'node:net'
import { dirname } from 'node:path'
import { renewalDays } from '../../model/app/certificate.ts'
import { ensureDirectory, removeAbandonedFiles, temporaryPath } from './atomic-file.ts'
import { readTextIfPresent } from './file.ts'
import type { Home } from './home.ts'
import { run } from './process.ts'

export interface Authority {
  certificateFile: string
  keyFile: string
}

export interface ServerCertificateOptions {
  home: Home
  /** The directory for `server.crt` and `server.key`. */
  directory: string
  /** Host names and addresses in addition to those of the loopback interface. */
  hosts: string[]
  uid?: number | undefined
  /** A group that may read the key as well. PostgreSQL then requires that root owns it. */
  readers?: number | undefined
  /** The common name in the subject. */
  name?: string
}

const authorityDays = 3650
const serverDays = 730
const loopbackHosts = ['localhost', '127.0.0.1', '::1']

/** Creates the authority. Of concurrent processes the first one wins, and none sees a certificate without its key. */
export async function ensureAuthority(home: Home): Promise<Authority> {
  const directory = `${home.path}/ca`
  const authority = { certificateFile: `${directory}/ca.crt`, keyFile: `${directory}/ca.key` }
  if (existsSync(directory)) return authority
  await removeAbandonedFiles(home.path)
  const fresh = temporaryPath(home.path)
  try {
    mkdirSync(fresh, { mode: 0o700 })
    // The random part distinguishes the authorities of several homes on one host.
    const name = `Berth authority ${randomBytes(4).toString('hex')}`
    const extensions = ['basicConstraints = critical, CA:TRUE, pathlen:0', 'keyUsage = critical, keyCertSign, cRLSign']
    await createCertificate({ fresh, file: 'ca', name, days: authorityDays, extensions })
    chmodSync(`${fresh}/ca.crt`, 0o644)
    chmodSync(fresh, 0o711)
    await run('sync', ['-f', fresh])
    renameSync(fresh, directory)
  } catch (cause) {
    rmSync(fresh, { recursive: true, force: true })
    if (!existsSync(directory)) throw new Error('create the certificate authority', { cause })
  }
  return authority
}

/** Returns true if it wrote a new certificate, which the server has to load. */
export async function ensureServerCertificate(options: ServerCertificateOptions): Promise<boolean> {
  const { home, directory, name = 'Berth cluster' } = options
  const authority = await ensureAuthority(home)
  const hosts = [...new Set([...options.hosts, ...loopbackHosts])]
  if (isUsable(directory, authority, hosts)) return false
  ensureDirectory(directory, { mode: 0o711 })
  const fresh = temporaryPath(dirname(directory))
  try {
    mkdirSync(fresh, { mode: 0o700 })
    const extensions = serverExtensions(hosts)
    await createCertificate({ fresh, file: 'server', name, days: serverDays, extensions, authority })
    // A crash in between leaves a pair that does not match, which the next call replaces.
    for (const file of ['server.key', 'server.crt']) moveFile(`${fresh}/${file}`, `${directory}/${file}`, options)
  } catch (cause) {
    throw new Error(`make a certificate for ${hosts.join(', ')}`, { cause })
  } finally {
    rmSync(fresh, { recursive: true, force: true })
  }
  return true
}

/** Issues a certificate for one host name, without keeping a copy. */
export async function issueCertificate(home: Home, host: string): Promise<{ fullchain: string; privateKey: string }> {
  const authority = await ensureAuthority(home)
  const fresh = temporaryPath(home.path)
  try {
    mkdirSync(fresh, { mode: 0o700 })
    const extensions = serverExtensions([host])
    const name = host.length <= 64 ? host : 'Berth host' // a common name has at most 64 characters
    await createCertificate({ fresh, file: 'server', name, days: serverDays, extensions, authority })
    const chain = [`${fresh}/server.crt`, authority.certificateFile].map((file) => readFileSync(file, 'utf8'))
    return { fullchain: chain.join(''), privateKey: readFileSync(`${fresh}/server.key`, 'utf8') }
  } catch (cause) {
    throw new Error(`make a certificate for ${host}`, { cause })
  } finally {
    rmSync(fresh, { recursive: true, force: true })
  }
}

function serverExtensions(hosts: string[]): string[] {
  const names = hosts.map((host) => `${isIP(host) === 0 ? 'DNS' : 'IP'}:${checkedHost(host)}`)
  return [
    'basicConstraints = critical, CA:FALSE',
    'keyUsage = critical, digitalSignature',
    'extendedKeyUsage = serverAuth',
    `subjectAltName = ${names.join(', ')}`,
  ]
}

function moveFile(from: string, to: string, { uid, readers }: ServerCertificateOptions): void {
  if (uid !== undefined) chownSync(from, uid, uid)
  if (readers !== undefined) chownSync(from, 0, readers)
  chmodSync(from, readers === undefined ? 0o600 : 0o640)
  renameSync(from, to)
}

function isUsable(directory: string, authority: Authority, hosts: string[]): boolean {
  const [text, key] = [readTextIfPresent(`${directory}/server.crt`), readTextIfPresent(`${directory}/server.key`)]
  if (!text || !key) return false
  const certificate = new X509Certificate(text)
  const issuer = new X509Certificate(readFileSync(authority.certificateFile))
  return (
    Date.parse(certificate.validTo) - Date.now() > renewalDays * 86_400_000 &&
    certificate.verify(issuer.publicKey) &&
    certificate.checkPrivateKey(createPrivateKey(key)) &&
    certificate.subjectAltName?.split(', ').length === hosts.length &&
    hosts.every(
      (host) => (isIP(host) === 0 ? certificate.checkHost(sampleName(host)) : certificate.checkIP(host)) !== undefined,
    )
  )
}

/** Returns a host name that a wildcard covers. */
function sampleName(host: string): string {
  return host.replace(/^\*/, 'any')
}

function checkedHost(host: string): string {
  if (isIP(host) === 0 && !/^(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$/.test(host))
    throw new Error(`not a host name: ${JSON.stringify(host)}`)
  return host
}

interface CertificateRequest {
  fresh: string
  file: string
  name: string
  days: number
  extensions: string[]
  authority?: Authority
}

async function createCertificate({
  fresh,
  file,
  name,
  days,
  extensions,
  authority,
}: CertificateRequest): Promise<void> {
  const configuration = [
    ...['[req]', 'prompt = no', 'distinguished_name = name', 'x509_extensions = extensions'],
    ...['[name]', 'O = Berth', `CN = ${name}`],
    ...['[extensions]', 'subjectKeyIdentifier = hash', 'authorityKeyIdentifier = keyid', ...extensions, ''],
  ]
  const signer = authority ? ['-CA', authority.certificateFile, '-CAkey', authority.keyFile] : []
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-noenc', '-keyout', `${fresh}/${file}.key`]
  const output = ['-out', `${fresh}/${file}.crt`, '-days', String(days)]
  writeFileSync(`${fresh}/configuration`, configuration.join('\n'))
  await run('openssl', ['req', '-x509', '-sha256', '-config', `${fresh}/configuration`, ...signer, ...key, ...output])
  rmSync(`${fresh}/configuration`)
}
