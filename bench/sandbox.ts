import {
  askText,
  type BoxHost,
  execute,
  getService,
  makeSandbox,
  millisOf,
  openBoxHost,
  putService,
  removeSandbox,
} from './box.ts'
import { checkpoints } from './checkpoint.ts'
import { until } from './child.ts'
import { call } from './cluster.ts'
import { group, type Measurement, mean, rangeText } from './framework.ts'
import { boxMemoryMb, kernelMemoryMb } from './memory.ts'
import { startBareServer } from './platform.ts'
import { compareRates, type Side } from './rate.ts'
import { timed } from './timed.ts'

const sandboxCount = 50
const longRunning = ['sleep', '100000']

const sandboxes = group<BoxHost>({
  async setUp(scope) {
    const host = await openBoxHost(scope)
    // The first sandbox of a home also creates the base that all of them share.
    await makeSandbox(host, 'first')
    await execute(host, 'first', 'true')
    return host
  },
  benchmarks: [
    timed('sandbox-create', 'time to create a sandbox and run a first command in it', 60, 30, async (host, round) => {
      const name = `fresh-${round}`
      const millis = await millisOf(async () => {
        await makeSandbox(host, name)
        await execute(host, name, 'true')
      })
      await removeSandbox(host, name)
      return millis
    }),
    timed(
      'sandbox-exec',
      'time to run `true` over a WebSocket, from the upgrade to the end of the connection',
      15,
      100,
      (host) => millisOf(() => execute(host, 'first', 'true')),
    ),
    timed('service-put', 'time from PUT of a new service until it runs', 60, 30, async (host, round) => {
      const name = `new-${round}`
      const isRunning = async () => (await getService(host, 'first', name)).state.status === 'running'
      const millis = await millisOf(async () => {
        await putService(host, 'first', name, longRunning)
        await until(isRunning, `service ${name} to run`, 10, 1)
      })
      await askText(host, 'DELETE', `/first/services/${name}`)
      return millis
    }),
    timed(
      'service-crash',
      'time from the first crash of a service until it runs again',
      1200,
      5,
      async (host, round) => {
        const name = `crashing-${round}`
        await putService(host, 'first', name, longRunning)
        const isBack = async () => {
          const { status, restart_count } = (await getService(host, 'first', name)).state
          return status === 'running' && restart_count === 1
        }
        const millis = await millisOf(async () => {
          await askText(host, 'POST', '/first/services/signal', { name, signal: 'KILL' })
          await until(isBack, `service ${name} to be back`)
        })
        await askText(host, 'DELETE', `/first/services/${name}`)
        return millis
      },
    ),
    {
      name: 'service-get',
      title: 'GET /v1/sandboxes/{name}/services/{service_name}, requests/s',
      target: { atLeast: 0.4 },
      run: compareGet,
    },
    {
      name: 'sandbox-memory',
      title: `memory of a sandbox without its service, ${sandboxCount} running with one service each`,
      target: { atMost: 3 },
      run: measureMemory,
    },
  ],
})

export const sandbox = [sandboxes, ...checkpoints]

async function compareGet(host: BoxHost): Promise<Measurement> {
  const { scope, platform, state, url } = host
  await putService(host, 'first', 'web', longRunning)
  await call(platform, 'POST', '/v1/apps', { app_name: 'bench', org_slug: 'personal' })
  const { rows } = await state.query(`select id from app where name = 'bench'`)
  const bare = await startBareServer(scope, platform)
  const { origin, pathname } = new URL(url)
  const { token } = platform
  const paths = [`${pathname}/first/services/web`]
  const ours: Side = [
    { url: origin, processes: platform.processes },
    { method: 'GET', token, paths },
  ]
  const theirs: Side = [bare, { method: 'GET', token, paths: [`/app/${rows[0].id}`] }]
  const { median, detail, disturbed } = await compareRates(ours, theirs)
  await askText(host, 'DELETE', '/first/services/web')
  return { value: median, unit: '×', reference: 'bare Fastify route, one primary-key SELECT', note: detail, disturbed }
}

async function measureMemory(host: BoxHost): Promise<Measurement> {
  const names = Array.from({ length: sandboxCount }, (_, number) => `one-of-many-${number}`)
  const ids: string[] = []
  for (const name of names) {
    ids.push(await makeSandbox(host, name))
    await putService(host, name, 'main', longRunning)
  }
  const sizes = boxMemoryMb('sandbox', ids, longRunning)
  const kernel = kernelMemoryMb('sandbox', ids)
  for (const name of names) await askText(host, 'DELETE', `/${name}`)
  const counted =
    'PSS of the supervisors and loggers outside and inside, the monitoring shell and bwrap, without the service'
  const beside = kernel.length > 0 ? `; plus ${mean(kernel).toFixed(1)} MB of kernel memory for all its processes` : ''
  const note = `${counted}; ${rangeText(sizes, 2)} MB${beside}`
  return { value: mean(sizes), unit: 'MB', reference: '', note, disturbed: false }
}
