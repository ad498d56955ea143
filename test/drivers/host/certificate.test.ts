import { createHash, createPrivateKey, X509Certificate } from 'node:crypto'
import { readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { ensureAuthority, ensureServerCertificate, issueCertificate } from '../../../src/drivers/host/certificate.ts'
import { type Home, openHome } from '../../../src/drivers/host/home.ts'
import { isRoot, run } from '../../../src/drivers/host/process.ts'
import { renewCertificate } from '../../../src/main/edge/certificate.ts'
import { firstLine, removeTemporaryHome, startProgram, temporaryDirectory } from '../../support/temporary-home.ts'

const path = temporaryDirectory()
const uid = isRoot() ? 300_001 : undefined
const day = 86_400_000
let home: Home
let directory: string

beforeAll(async () => {
  home = await openHome(`${path}/h`, { uidBase: 300_000, registry: `${path}/registry` })
  directory = `${home.path}/tls`
})
afterAll(() => removeTemporaryHome(path))

const make = (hosts = ['db.example.org', '192.0.2.7']) => ensureServerCertificate({ home, directory, hosts, uid })
const current = () => new X509Certificate(readFileSync(`${directory}/server.crt`))

test('creates one authority for ten years, even for concurrent requests', async () => {
  const program = `
    import { readFileSync } from 'node:fs'
    import { ensureAuthority } from 'drivers/host/certificate.ts'
    import { openHome } from 'drivers/host/home.ts'
    const home = await openHome('${path}/h', { uidBase: 300000, registry: '${path}/registry' })
    const { certificateFile, keyFile } = await ensureAuthority(home)
    console.log(readFileSync(certificateFile, 'base64') + readFileSync(keyFile, 'base64'))
  `
  const lines = await Promise.all([1, 2, 3].map(() => firstLine(startProgram(program))))
  expect(new Set(lines.map((line) => createHash('sha256').update(line).digest('hex'))).size).toBe(1)
  const { certificateFile, keyFile } = await ensureAuthority(home)
  const authority = new X509Certificate(readFileSync(certificateFile))
  expect(authority.ca).toBe(true)
  expect(authority.publicKey.asymmetricKeyDetails?.namedCurve).toBe('prime256v1')
  expect((Date.parse(authority.validTo) - Date.now()) / day).toBeGreaterThan(3600)
  expect(statSync(keyFile).mode & 0o777).toBe(0o600)
  expect(statSync(certificateFile).mode & 0o777).toBe(0o644)
  expect(readdirSync(home.path).filter((entry) => entry.startsWith('.new'))).toEqual([])
})

test('signs a certificate for the given names and those of the host', async () => {
  expect(await make()).toBe(true)
  const { certificateFile } = await ensureAuthority(home)
  await run('openssl', ['verify', '-purpose', 'sslserver', '-CAfile', certificateFile, `${directory}/server.crt`])
  for (const name of ['db.example.org', 'localhost']) expect(current().checkHost(name), name).toBe(name)
  for (const address of ['192.0.2.7', '127.0.0.1', '::1']) expect(current().checkIP(address), address).toBe(address)
  expect(current().checkHost('example.org')).toBeUndefined()
  expect((Date.parse(current().validTo) - Date.now()) / day).toBeGreaterThan(700)
  const key = statSync(`${directory}/server.key`)
  expect(key.mode & 0o777).toBe(0o600)
  if (uid !== undefined) expect(key.uid).toBe(uid)
})

test('keeps a valid certificate', async () => {
  const before = current().fingerprint256
  expect(await make()).toBe(false)
  expect(current().fingerprint256).toBe(before)
})

test('issues a new certificate when the names change', async () => {
  expect(await make(['db.example.com'])).toBe(true)
  expect(current().checkHost('db.example.org')).toBeUndefined()
  expect(await make(['db.example.com'])).toBe(false)
})

test('issues a new certificate when the key does not match, as after a crash between the two writes', async () => {
  const other = `${home.path}/other`
  await ensureServerCertificate({ home, directory: other, hosts: [], uid })
  writeFileSync(`${directory}/server.key`, readFileSync(`${other}/server.key`))
  expect(await make()).toBe(true)
  expect(await make()).toBe(false)
})

test('issues a new certificate thirty days before expiry', async () => {
  const { certificateFile, keyFile } = await ensureAuthority(home)
  const names = 'subjectAltName=DNS:db.example.org,IP:192.0.2.7,DNS:localhost,IP:127.0.0.1,IP:::1'
  const files = ['-key', `${directory}/server.key`, '-out', `${directory}/server.crt`]
  const signer = ['-CA', certificateFile, '-CAkey', keyFile]
  const short = ['req', '-x509', ...signer, ...files, '-subj', '/CN=x', '-addext', names]
  await run('openssl', [...short, '-days', '40'])
  expect(await make()).toBe(false)
  await run('openssl', [...short, '-days', '29'])
  expect(await make()).toBe(true)
  expect(await make()).toBe(false)
})

test('refuses an invalid host name', async () => {
  for (const host of ['a\nb', 'a,DNS:evil', '-x', '']) {
    await expect(make([host]), host).rejects.toThrow('make a certificate')
  }
})

test('issues one for a single name or wildcard on request, and leaves no files', async () => {
  const before = readdirSync(home.path)
  const authority = new X509Certificate(readFileSync((await ensureAuthority(home)).certificateFile))
  for (const name of ['www.example.com', '*.example.com', `${'long.'.repeat(30)}example.com`]) {
    const { fullchain, privateKey } = await issueCertificate(home, name)
    const certificate = new X509Certificate(fullchain)
    expect([certificate.subjectAltName, certificate.verify(authority.publicKey)]).toEqual([`DNS:${name}`, true])
    expect(certificate.checkPrivateKey(createPrivateKey(privateKey))).toBe(true)
  }
  await expect(issueCertificate(home, 'a\nb')).rejects.toThrow(/make a certificate/)
  expect(readdirSync(home.path)).toEqual(before)
})

test('renews the certificate of the edge and tells it to reload', async () => {
  const signals: string[] = []
  const ground = {
    config: { domain: 'berth.localhost', sandboxDomain: 'box.localhost' },
    home,
    log: { warn: () => undefined },
    supervisor: {
      async signalService(name: string, signal: string) {
        signals.push(`${name} ${signal}`)
      },
    },
  }
  await renewCertificate(ground)
  expect(signals).toEqual(['edge SIGHUP'])
  await renewCertificate(ground)
  expect(signals).toHaveLength(1)
  rmSync(`${home.path}/edge-tls/server.crt`)
  await renewCertificate(ground)
  expect(signals).toHaveLength(2)
})
