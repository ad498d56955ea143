import { execFileSync } from 'node:child_process'
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { Berth } from '../support/berth.ts'

const directory = mkdtempSync(join(tmpdir(), 'berth-dist-'))
chmodSync(directory, 0o711)

afterAll(() => rmSync(directory, { recursive: true, force: true }))

/** Programs that a release must not need. Each fails when it is called. */
function forbidPrograms(...names: string[]): string {
  const bin = join(directory, 'bin')
  mkdirSync(bin)
  for (const name of names)
    writeFileSync(join(bin, name), `#!/bin/sh\necho "called ${name}" >&2\nexit 99\n`, { mode: 0o755 })
  return bin
}

test('a release starts without npm, a system Node or a compiler', { timeout: 300_000 }, async () => {
  execFileSync('scripts/dist.sh', [directory])
  const tarball = readdirSync(directory).find((name) => name.endsWith('.tar.gz'))!
  execFileSync('sha256sum', ['--check', `${tarball}.sha256`], { cwd: directory })
  execFileSync('tar', ['xzf', tarball], { cwd: directory })
  const root = join(directory, tarball.replace('.tar.gz', ''))
  expect(readdirSync(root)).toEqual(expect.arrayContaining(['berth', 'LICENSE', 'README.md', 'SECURITY.md']))

  const bin = forbidPrograms('npm', 'npx', 'node', 'cc', 'gcc', 'make')
  const environment = { PATH: `${bin}:${process.env.PATH}` }
  execFileSync(join(root, 'scripts/setup.sh'), ['run'], { env: environment })
  const berth = new Berth(environment, join(root, 'berth'))
  try {
    await berth.up()
    expect((await berth.call('POST', '/v1/apps', { app_name: 'one', org_slug: 'personal' })).status).toBe(201)
  } finally {
    await berth.destroy()
  }
})
