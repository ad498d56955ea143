import { expect, test } from 'vitest'
import type { MachineService } from '../../model/app/machine-config.ts'
import type { RunningMachine } from '../../store/app/machine-load.ts'
import type { AppRouteRow, MachineRouteRow } from '../../store/app/route.ts'
import { proxyHeader } from '../tcp/tunnel.ts'
import { datagramListensOf } from '../udp/datagram.ts'
import { appRouteOf, findPort, listensOf } from './app.ts'
import { chooseSpare } from './autostop.ts'

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
  const app = appRouteOf(row, options, undefined)
  expect(app.targets).toMatchObject([{ address: '100.64.47.162', port: 8080, isOpen: true, autostarts: true }])
  expect([app.hosts, app.customHosts, app.addresses]).toEqual([['web.app.test'], ['www.example.com'], ['127.0.9.1']])
})

test('limits are shared by the workers, and none of them has nothing', () => {
  const limits = (hard: number, soft: number, count: number) => {
    const given = withService({ concurrency: { hard_limit: hard, soft_limit: soft } })
    return Array.from({ length: count }, (_, index) => {
      const [target] = appRouteOf(given, { ...options, worker: { index, count } }, undefined).targets
      return [target!.hardLimit, target!.softLimit]
    })
  }
  expect(limits(25, 20, 2)).toEqual([
    [13, 10],
    [12, 10],
  ])
  // Few places are counted for all workers together.
  expect(limits(7, 1, 2)).toEqual([
    [7, 1],
    [7, 1],
  ])
  const [unlimited] = appRouteOf(row, options, undefined).targets
  expect([unlimited!.hardLimit, unlimited!.softLimit]).toEqual([Number.POSITIVE_INFINITY, 20])
})

test('what is under way at a version is known after its app has changed, and not for the next version', () => {
  const before = appRouteOf(row, options, undefined)
  before.targets[0]!.load = 7
  expect(appRouteOf(withService({}, { cordoned: true }), options, before).targets).toMatchObject([
    { load: 7, isOpen: false },
  ])
  expect(appRouteOf(withService({}, { instanceId: 'v2' }), options, before).targets).toMatchObject([{ load: 0 }])
})

test('a machine is open once the checks that count have passed, and rises until one of them fails', () => {
  const checks: MachineRouteRow['checks'] = { ready: { kind: 'readiness' }, told: {} }
  const ofService: MachineService['checks'] = [{ type: 'http' }, { type: 'tcp', kind: 'informational' }]
  const targetWith = (statuses: MachineRouteRow['statuses'], state: MachineRouteRow['state'] = 'started') => {
    const [target] = appRouteOf(
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

test('the port of the edge stands for those of the web, and others for themselves', () => {
  const app = appRouteOf(row, options, undefined)
  expect([findPort(app, 4282, false, 4282)?.port, findPort(app, 4282, true, 4282)?.port]).toEqual([80, 443])
  expect(findPort(app, 8080, false, 4282)).toBeUndefined()
  const odd = appRouteOf(withService({ ports: [{ start_port: 9000, end_port: 9002 }] }), options, undefined)
  expect([...odd.ports.keys()]).toEqual([9000, 9001, 9002])
  expect(findPort(odd, 4282, false, 4282)).toBeUndefined()
  expect(listensOf([odd], 4282)).toEqual(['127.0.9.1 4282', '127.0.9.1 9000', '127.0.9.1 9001', '127.0.9.1 9002'])
})

test('at a shared address further ports are those of TLS, and nobody takes all of them', () => {
  const ips = [{ ip: '127.0.9.2', shared: true, type: 'shared_v4' }]
  const ports = [
    { port: 8443, handlers: ['tls' as const] },
    { port: 9000, handlers: ['http' as const] },
    { start_port: 20_000, end_port: 20_050, handlers: ['tls' as const] },
  ]
  const listens = listensOf([appRouteOf({ ...withService({ ports }), ips }, options, undefined)], 4282)
  expect(listens.slice(0, 5)).toEqual(['4282', '443', '80', '20000', '20001'].map((port) => `127.0.9.2 ${port}`))
  expect(listens).toContain('127.0.9.2 8443')
  expect(listens).not.toContain('127.0.9.2 9000')
  expect(listens).toHaveLength(3 + 16)
})

test('of more ports than an app may have, every machine has the same', () => {
  const services = [{ ...service, ports: [{ start_port: 1_000, end_port: 1_999 }] }]
  const machines = ['m1', 'm2'].map((id) => ({ ...machine, id, services }))
  const { ports } = appRouteOf({ ...row, machines }, options, undefined)
  expect([ports.size, [...ports.values()].every(({ targets }) => targets.length === 2)]).toEqual([256, true])
})

const datagrams = [
  { protocol: 'udp' as const, internal_port: 53, ports: [{ port: 53 }], concurrency: { hard_limit: 5 } },
  { protocol: 'tcp' as const, internal_port: 53, ports: [{ port: 53 }], concurrency: { hard_limit: 5 } },
]

test('ports of datagrams are apart from others of the same number, and their limits whole', () => {
  const given = { ...row, machines: [{ ...machine, services: datagrams }] }
  const { ports, datagramPorts, targets } = appRouteOf(given, { ...options, worker: { index: 1, count: 4 } }, undefined)
  expect(targets.map(({ key, hardLimit, isCounted }) => [key, hardLimit, isCounted])).toEqual([
    ['m1 v1 100.64.47.162:53/udp', 5, false],
    ['m1 v1 100.64.47.162:53', 5, true],
  ])
  expect([[...datagramPorts.keys()], datagramPorts.get(53)!.targets]).toEqual([[53], [targets[0]]])
  expect([[...ports.keys()], ports.get(53)!.targets]).toEqual([[53], [targets[1]]])
})

test('datagrams are taken at addresses that are not shared, by one worker for each app', () => {
  const ips = [
    { ip: '127.0.9.1', shared: false, type: 'v4' },
    { ip: 'fdaa::5', shared: false, type: 'private_v6' },
    { ip: '127.0.0.9', shared: true, type: 'shared_v4' },
  ]
  const apps = Array.from({ length: 40 }, (_, index) => {
    const given = { ...row, id: `app-${index}`, ips, machines: [{ ...machine, services: datagrams }] }
    return appRouteOf(given, options, undefined)
  })
  const taken = [0, 1, 2, 3].map((index) =>
    apps.filter((app) => datagramListensOf([app], { index, count: 4 }).length > 0),
  )
  expect([taken.flat().length, taken.every(({ length }) => length > 0)]).toEqual([40, true])
  expect(datagramListensOf([apps[0]!], { index: 0, count: 1 })).toEqual(['127.0.9.1 53', 'fdaa::5 53'])
})

test('a private address gives no name', () => {
  const ips = [{ ip: 'fdaa::5', shared: false, type: 'private_v6' }]
  expect(appRouteOf({ ...row, ips }, options, undefined)).toMatchObject({
    hosts: [],
    customHosts: [],
    addresses: ['fdaa::5'],
  })
})

const running = (id: string, load: number, changes: Partial<MachineService> = {}): RunningMachine => ({
  id,
  appId: 'a1',
  region: 'ams',
  services: [{ ...service, autostop: true, concurrency: { soft_limit: 10 }, ...changes }],
  load,
  isSettled: true,
})

test.each<[string, RunningMachine[], unknown]>([
  ['one without anything to do', [running('a', 0)], { id: 'a', how: 'stop' }],
  ['one with something to do', [running('a', 1)], undefined],
  ['one that is to be there', [running('a', 0, { min_machines_running: 1 })], undefined],
  ['the least loaded of several', [running('a', 5), running('b', 2), running('c', 9)], { id: 'b', how: 'stop' }],
  ['none when one of two is full', [running('a', 11), running('b', 0)], undefined],
  ['the third when one is full', [running('a', 11), running('b', 3), running('c', 1)], { id: 'c', how: 'stop' }],
  ['by putting it to sleep', [running('a', 0, { autostop: 'suspend' })], { id: 'a', how: 'suspend' }],
  ['none that has just been started', [{ ...running('a', 0), isSettled: false }], undefined],
])('of those that run is stopped: %s', (_name, group, chosen) => {
  expect(chooseSpare(group)).toEqual(chosen)
})

test('the PROXY protocol is written in both versions and families', () => {
  const peer = {
    address: '192.0.2.7',
    local: '198.51.100.1',
    port: 443,
    remotePort: 5000,
    secure: true,
    trusted: false,
  }
  expect(String(proxyHeader(1, peer, 1))).toBe('PROXY TCP4 192.0.2.7 198.51.100.1 5000 443\r\n')
  expect(proxyHeader(2, peer, 1).toString('hex')).toBe('0d0a0d0a000d0a515549540a2111000cc0000207c6336401138801bb')
  const six = { ...peer, address: '2001:db8::1', local: '::1' }
  expect(proxyHeader(2, six, 1).subarray(16).toString('hex')).toBe(
    '20010db800000000000000000000000100000000000000000000000000000001138801bb',
  )
})
