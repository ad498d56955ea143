import { spawn } from 'node:child_process'
import { chmodSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { platformPorts } from '../support/port.ts'
import { until } from '../support/until.ts'

const script = new URL('../../scripts/demo.sh', import.meta.url).pathname
const directory = mkdtempSync(join(tmpdir(), 'berth-'))
// The users that clusters run as must be able to traverse it.
chmodSync(directory, 0o711)

afterAll(() => rmSync(directory, { recursive: true, force: true }))

async function runDemo(): Promise<{ code: number | null; out: string; err: string }> {
  const env = {
    PATH: process.env.PATH ?? '',
    HOME: process.env.HOME ?? '/',
    TMPDIR: directory,
    BERTH_PG_PORTS: `${platformPorts.first}-${platformPorts.last}`,
  }
  const child = spawn(script, { env, stdio: ['ignore', 'pipe', 'pipe'] })
  const ended = new Promise<number | null>((resolve, reject) => child.once('close', resolve).once('error', reject))
  const [out, err] = await Promise.all(
    [child.stdout, child.stderr].map(async (stream) => (await stream.toArray()).join('')),
  )
  return { code: await ended, out: out!, err: err! }
}

/** Lists processes that were started for the home, run in it, or have it in their arguments. */
function processesOfDemo(): string[] {
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name) && name !== String(process.pid))
  return pids.filter((pid) => traces(pid).some((text) => text.includes(`${directory}/berth-demo-`)))
}

function traces(pid: string): string[] {
  try {
    const files = ['cmdline', 'environ'].map((file) => readFileSync(`/proc/${pid}/${file}`, 'utf8'))
    return [...files, readlinkSync(`/proc/${pid}/cwd`)]
  } catch {
    return [] // the process has ended or belongs to another user
  }
}

test('restores a dropped table and leaves nothing behind', { timeout: 300_000 }, async () => {
  const { code, out, err } = await runDemo()
  expect({ code, out, err }).toMatchObject({ code: 0 })
  const [story, restored] = out.split('The new cluster has every row:')
  expect(story).toMatch(/^\$ \.\/berth postgres restore shop --to "\d{4}-.+\+00" --name shop-before$/m)
  expect(story).toContain('relation "orders" does not exist')
  expect(restored).toMatch(/ 1 \| anchor\n +2 \| rope\n +3 \| lantern\n\(3 rows\)/)
  expect(out).not.toContain('\u001b')
  expect(readdirSync(directory)).toEqual([])
  // The trash is emptied in the background.
  await until(() => processesOfDemo().length === 0)
})
