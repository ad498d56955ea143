import { expect, test } from 'vitest'
import type { MachineService } from '../../model/app/machine-config.ts'
import type { AppRouteRow, MachineRouteRow } from '../../store/app/route.ts'
import { listDatagramListens } from '../udp/datagram-proxy.ts'
import { createAppRoute, findPort } from './app.ts'
import { listAppListens } from './app-listen.ts'

const service: MachineService = {
  internal_port: 8080,
  ports: [
    { port: 80, handlers: ['http'] },
    { port: 443, handlers: ['tls', 'http'] },
  ],
}
const machine: MachineRouteRow = {
  id: 'm1',
  instanceId: 'v1',
  state: 'started',
  region: 'ams',
  slot: 1000,
  cordoned: false,
  autostarts: true,
  services: [service],
  checks: null,
  statuses: null,
}
const row: AppRouteRow = {
  id: 'a1',
  name: 'web',
  orgId: 'acme',
  network: 'default',
  crossNetworkReplays: true,
  enableSubdomains: false,
  ips: [{ ip: '127.0.9.1', shared: false, type: 'v4' }],
  hosts: ['www.example.com'],
  certificates: [],
  machines: [machine],
}
const options = { domain: 'app.test', boxes: { homeNumber: 2 }, worker: { index: 0, count: 1 } }
const withService = (changes: Partial<MachineService>, more: Partial<MachineRouteRow> = {}): AppRouteRow => ({
  ...row,
  machines: [{ ...machine, ...more, services: [{ ...service, ...changes }] }],
})

test('a machine is reached at the address of its slot', () => {
  const app = createAppRoute(row, options, undefined)
  expect(app.targets).toMatchObject([{ address: '100.64.47.162', port: 8080, isOpen: true, autostarts: true }])
  expect([app.hosts, app.customHosts, app.addresses]).toEqual([['web.app.test'], ['www.example.com'], ['127.0.9.1']])
})

test('limits are divided between the workers, and each gets at least 1', () => {
  const limits = (hard: number, soft: number, count: number) => {
    const given = withService({ concurrency: { hard_limit: hard, soft_limit: soft } })
    return Array.from({ length: count }, (_, index) => {
      const [target] = createAppRoute(given, { ...options, worker: { index, count } }, undefined).targets
      return [target!.hardLimit, target!.softLimit]
    })
  }
  expect(limits(25, 20, 2)).toEqual([
    [13, 10],
    [12, 10],
  ])
  // Small hard limits are not divided.
  expect(limits(7, 1, 2)).toEqual([
    [7, 1],
    [7, 1],
  ])
  const [unlimited] = createAppRoute(row, options, undefined).targets
  expect([unlimited!.hardLimit, unlimited!.softLimit]).toEqual([Number.POSITIVE_INFINITY, 20])
})

test('the load of a machine survives changes of its app, but not a new version of the machine', () => {
  const before = createAppRoute(row, options, undefined)
  before.targets[0]!.load = 7
  expect(createAppRoute(withService({}, { cordoned: true }), options, before).targets).toMatchObject([
    { load: 7, isOpen: false },
  ])
  expect(createAppRoute(withService({}, { instanceId: 'v2' }), options, before).targets).toMatchObject([{ load: 0 }])
})

test('a machine is open once its readiness checks pass, and rising until one fails', () => {
  const checks: MachineRouteRow['checks'] = { ready: { kind: 'readiness' }, told: {} }
  const ofService: MachineService['checks'] = [{ type: 'http' }, { type: 'tcp', kind: 'informational' }]
  const targetWith = (statuses: MachineRouteRow['statuses'], state: MachineRouteRow['state'] = 'started') => {
    const [target] = createAppRoute(
      withService({ checks: ofService }, { checks, statuses, state }),
      options,
      undefined,
    ).targets
    return [target!.isOpen, target!.isRising]
  }
  const web = 'servicecheck-00-http-8080'
  const others = { told: 'critical', 'servicecheck-00-tcp-8080-1': 'critical' } as const
  expect(targetWith(null)).toEqual([false, true])
  expect(targetWith({ ...others, ready: 'passing', [web]: 'warning' })).toEqual([false, true])
  expect(targetWith({ ...others, ready: 'passing', [web]: 'passing' })).toEqual([true, false])
  expect(targetWith({ ...others, ready: 'warning', [web]: 'critical' })).toEqual([false, false])
  expect(targetWith({ ...others, ready: 'passing', [web]: 'passing' }, 'starting')).toEqual([false, true])
  expect(targetWith(null, 'stopped')).toEqual([false, false])
})

test('the port of the edge stands for ports 80 and 443 of the app', () => {
  const app = createAppRoute(row, options, undefined)
  expect([findPort(app, 4282, false, 4282)?.port, findPort(app, 4282, true, 4282)?.port]).toEqual([80, 443])
  expect(findPort(app, 8080, false, 4282)).toBeUndefined()
  const odd = createAppRoute(withService({ ports: [{ start_port: 9000, end_port: 9002 }] }), options, undefined)
  expect([...odd.ports.keys()]).toEqual([9000, 9001, 9002])
  expect(findPort(odd, 4282, false, 4282)).toBeUndefined()
  expect(listAppListens([odd], 4282)).toEqual(['127.0.9.1 4282', '127.0.9.1 9000', '127.0.9.1 9001', '127.0.9.1 9002'])
})

test('at a shared address extra ports need TLS, and their number per app is limited', () => {
  const ips = [{ ip: '127.0.9.2', shared: true, type: 'shared_v4' }]
  const ports = [
    { port: 8443, handlers: ['tls' as const] },
    { port: 9000, handlers: ['http' as const] },
    { start_port: 20_000, end_port: 20_050, handlers: ['tls' as const] },
  ]
  const listens = listAppListens([createAppRoute({ ...withService({ ports }), ips }, options, undefined)], 4282)
  expect(listens.slice(0, 5)).toEqual(['4282', '443', '80', '20000', '20001'].map((port) => `127.0.9.2 ${port}`))
  expect(listens).toContain('127.0.9.2 8443')
  expect(listens).not.toContain('127.0.9.2 9000')
  expect(listens).toHaveLength(3 + 16)
})

test('the limit on ports keeps the same ports for every machine', () => {
  const services = [{ ...service, ports: [{ start_port: 1_000, end_port: 1_999 }] }]
  const machines = ['m1', 'm2'].map((id) => ({ ...machine, id, services }))
  const { ports } = createAppRoute({ ...row, machines }, options, undefined)
  expect([ports.size, [...ports.values()].every(({ targets }) => targets.length === 2)]).toEqual([256, true])
})

const datagrams = [
  { protocol: 'udp' as const, internal_port: 53, ports: [{ port: 53 }], concurrency: { hard_limit: 5 } },
  { protocol: 'tcp' as const, internal_port: 53, ports: [{ port: 53 }], concurrency: { hard_limit: 5 } },
]

test('UDP ports are separate from TCP ports, and their limits are not divided', () => {
  const given = { ...row, machines: [{ ...machine, services: datagrams }] }
  const { ports, datagramPorts, targets } = createAppRoute(
    given,
    { ...options, worker: { index: 1, count: 4 } },
    undefined,
  )
  expect(targets.map(({ key, hardLimit, needsPermit }) => [key, hardLimit, needsPermit])).toEqual([
    ['m1 v1 100.64.47.162:53/udp', 5, false],
    ['m1 v1 100.64.47.162:53', 5, true],
  ])
  expect([[...datagramPorts.keys()], datagramPorts.get(53)!.targets]).toEqual([[53], [targets[0]]])
  expect([[...ports.keys()], ports.get(53)!.targets]).toEqual([[53], [targets[1]]])
})

test('datagrams are received on dedicated addresses, by one worker for each app', () => {
  const ips = [
    { ip: '127.0.9.1', shared: false, type: 'v4' },
    { ip: 'fdaa::5', shared: false, type: 'private_v6' },
    { ip: '127.0.0.9', shared: true, type: 'shared_v4' },
  ]
  const apps = Array.from({ length: 40 }, (_, index) => {
    const given = { ...row, id: `app-${index}`, ips, machines: [{ ...machine, services: datagrams }] }
    return createAppRoute(given, options, undefined)
  })
  const taken = [0, 1, 2, 3].map((index) =>
    apps.filter((app) => listDatagramListens([app], { index, count: 4 }).length > 0),
  )
  expect([taken.flat().length, taken.every(({ length }) => length > 0)]).toEqual([40, true])
  expect(listDatagramListens([apps[0]!], { index: 0, count: 1 })).toEqual(['127.0.9.1 53', 'fdaa::5 53'])
})

test('an app with only a private address has no host names', () => {
  const ips = [{ ip: 'fdaa::5', shared: false, type: 'private_v6' }]
  expect(createAppRoute({ ...row, ips }, options, undefined)).toMatchObject({
    hosts: [],
    customHosts: [],
    addresses: ['fdaa::5'],
  })
})
