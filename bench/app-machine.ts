// Machines over the public API, from an image that the host has already pulled.
import { busyboxImage } from '../test/support/image.ts'
import { pushImage, startRegistry } from '../test/support/registry.ts'
import { millisOf, openBoxHost } from './box.ts'
import { until } from './child.ts'
import { group, type Measurement, mean, rangeText } from './framework.ts'
import { boxMemoryMb, kernelMemoryMb } from './memory.ts'
import type { Platform } from './platform.ts'
import type { Scope } from './scope.ts'
import { timed } from './timed.ts'

const machineCount = 100
const longRunning = ['sleep', '100000']

interface Fixture {
  platform: Platform
  image: string
}

interface Made {
  id: string
  instance_id: string
}

export const machines = [
  group<Fixture>({
    setUp,
    benchmarks: [
      timed(
        'machine-create',
        'time to create a machine from a local image until it is started',
        120,
        30,
        async (host) => {
          let made: Made | undefined
          const millis = await millisOf(async () => {
            made = await create(host)
            await waitFor(host, made, 'started')
          })
          await destroy(host, made!)
          return millis
        },
      ),
      timed('machine-stop', 'time to stop a machine whose program exits at once', 60, 30, async (host) => {
        const made = await create(host)
        await waitFor(host, made, 'started')
        const millis = await millisOf(async () => {
          await ask(host, 'POST', `/${made.id}/stop`)
          await waitFor(host, made, 'stopped')
        })
        await destroy(host, made)
        return millis
      }),
      {
        name: 'machine-memory',
        title: `memory of a machine without its program, ${machineCount} running`,
        target: { atMost: 3 },
        run: measureMemory,
      },
    ],
  }),
]

async function setUp(scope: Scope): Promise<Fixture> {
  const { platform } = await openBoxHost(scope)
  const registry = await startRegistry()
  scope.defer(() => registry.close())
  const { reference } = await pushImage(registry, { repository: 'bench', ...busyboxImage() })
  const host = { platform, image: reference }
  await call(host, 'POST', '/v1/apps', { app_name: 'bench', org_slug: 'personal' })
  // The first machine pulls the image.
  const first = await create(host)
  await waitFor(host, first, 'started')
  await destroy(host, first)
  return host
}

async function call<T>({ platform }: Fixture, method: string, path: string, body?: object): Promise<T> {
  const response = await fetch(`${platform.url}${path}`, {
    method,
    headers: { authorization: `Bearer ${platform.token}` },
    ...(body && { body: JSON.stringify(body) }),
    signal: AbortSignal.timeout(120_000),
  })
  const text = await response.text()
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
  return (text === '' ? {} : JSON.parse(text)) as T
}

function ask<T>(host: Fixture, method: string, path: string, body?: object): Promise<T> {
  return call(host, method, `/v1/apps/bench/machines${path}`, body)
}

function create(host: Fixture): Promise<Made> {
  const config = { image: host.image, init: { cmd: longRunning }, guest: { cpus: 1, memory_mb: 256 } }
  return ask(host, 'POST', '', { config })
}

async function waitFor(host: Fixture, { id, instance_id }: Made, state: string): Promise<void> {
  await ask(host, 'GET', `/${id}/wait?state=${state}&version=${instance_id}&timeout=60`)
}

async function destroy(host: Fixture, made: Made): Promise<void> {
  await ask(host, 'DELETE', `/${made.id}?force=true`)
  await until(
    async () => (await ask<{ state: string }>(host, 'GET', `/${made.id}`)).state === 'destroyed',
    'the machine to be destroyed',
  )
}

async function measureMemory(host: Fixture): Promise<Measurement> {
  const made: Made[] = []
  for (let i = 0; i < machineCount; i++) {
    made.push(await create(host))
    await waitFor(host, made[i]!, 'started')
  }
  const ids = made.map(({ id }) => id)
  const sizes = boxMemoryMb('machine', ids, longRunning)
  const kernel = kernelMemoryMb('machine', ids)
  for (const one of made) await destroy(host, one)
  const beside = kernel.length > 0 ? `; plus ${mean(kernel).toFixed(1)} MB of kernel memory for all its processes` : ''
  const note = `PSS of the supervisors, the log, the monitoring shell and bwrap; ${rangeText(sizes, 2)} MB${beside}`
  return { value: mean(sizes), unit: 'MB', reference: '', note, disturbed: false }
}
