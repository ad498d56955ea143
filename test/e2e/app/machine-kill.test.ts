// Kills the control plane at critical moments; machines must not be affected.
import { globSync, readFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { destroy, isRunning, processesOf } from '../../support/client.ts'
import { busyboxImage } from '../../support/image.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

const berth = new Berth()
let registry: Registry
let image: string
const path = '/v1/apps/shop/machines'

beforeAll(async () => {
  registry = await startRegistry()
  const script = 'trap "exit 0" INT TERM; while :; do sleep 0.05; done'
  image = (await pushImage(registry, { repository: 'box', ...busyboxImage({ Cmd: ['sh', '-c', script] }) })).reference
  await berth.up()
  await berth.call('POST', '/v1/apps', { app_name: 'shop', org_slug: 'personal' })
}, 120_000)

afterAll(async () => {
  await registry?.close()
  await destroy(berth)
})

const ok = (method: string, rest: string, body?: object) => berth.ok(method, `${path}${rest}`, body)

const wait = (id: string, state: string) => ok('GET', `/${id}/wait?state=${state}&timeout=60`)

/** Returns the pid of its program on the host. */
function pidOf(id: string): number {
  const found = globSync('/proc/[0-9]*/environ').find((file) => {
    try {
      const line = readFileSync(file.replace('environ', 'cmdline'), 'utf8')
      return line.startsWith('sh\0-c\0') && readFileSync(file, 'utf8').includes(`FLY_MACHINE_ID=${id}\0`)
    } catch {
      return false // the process has ended
    }
  })
  if (found === undefined) throw new Error(`nothing runs of ${id}`)
  return Number(found.split('/')[2])
}

async function dieAndReturn(): Promise<void> {
  await end(berth.children.at(-1)!)
  await berth.up()
}

test('running programs continue, and accepted commands are carried out', async () => {
  const { id } = await ok('POST', '', { config: { image } })
  await dieAndReturn()
  await wait(id, 'started')
  const first = pidOf(id)
  await dieAndReturn()
  expect((await ok('GET', `/${id}`)).state).toBe('started')
  expect(pidOf(id)).toBe(first)

  const updated = await ok('POST', `/${id}`, { config: { image } })
  await dieAndReturn()
  await ok('GET', `/${id}/wait?version=${updated.version}&timeout=60`)
  expect(isRunning(first)).toBe(false)

  await ok('POST', `/${id}/restart`)
  await ok('GET', `/${id}/wait?state=started,restarting&timeout=60`)
  await berth.call('DELETE', '/v1/apps/shop?force=true')
  await dieAndReturn()
  await until(() => processesOf(id).length === 0)
}, 240_000)
