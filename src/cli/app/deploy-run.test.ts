import { describe, expect, test } from 'vitest'
import { requireReplaceable } from './deploy-replace.ts'
import { batchSizeFor, type Deployment, makePlan, pickCanaries } from './deploy-run.ts'
import type { Machine, MachineConfig } from './machine-find.ts'
import { machinesToDestroy, parseCounts } from './scale.ts'

const release = { id: 'r', version: 7 }
const noted = (group: string) => ({
  fly_platform_version: 'v2',
  fly_process_group: group,
  fly_release_id: 'r',
  fly_release_version: '7',
})
const service = { protocol: 'tcp', internal_port: 80, ports: [{ port: 80 }] }

function machine(id: string, group: string, config: Partial<MachineConfig> = {}, more: Partial<Machine> = {}): Machine {
  const metadata = { fly_process_group: group, own: 'kept' }
  return {
    id,
    name: id,
    state: 'started',
    region: 'local',
    instance_id: `v-${id}`,
    version: `v-${id}`,
    private_ip: '',
    image_ref: { registry: 'docker.io', repository: 'library/x', tag: '', digest: '', labels: {} },
    cordoned: false,
    restart_count: 0,
    created_at: `2026-01-01T00:00:0${id}Z`,
    updated_at: '',
    config: { image: 'old', metadata, ...config },
    ...more,
  }
}

function plan(change: Partial<Deployment>, ...machines: Machine[]) {
  const deployment: Deployment = {
    app: 'web',
    image: 'new',
    region: undefined,
    groups: undefined,
    initialConfig: {},
    env: undefined,
    strategy: 'rolling',
    maxUnavailable: 1,
    releaseCommand: undefined,
    releaseSeconds: 1,
    waitSeconds: 1,
    isHighlyAvailable: true,
    hasPublicIps: true,
    ...change,
  }
  return makePlan(deployment, machines, 'new', release)
}

describe('a plan', () => {
  test('creates two machines for a group with a service, unless it has a volume or high availability is off', () => {
    const groups = new Map([
      ['web', { services: [service] }],
      ['disk', { services: [service], mounts: [{ name: 'd', path: '/d' }] }],
      ['work', {}],
    ])
    const counts = (isDouble: boolean) =>
      plan({ groups, isHighlyAvailable: isDouble }).missing.map(({ count }) => count)
    expect(counts(true)).toEqual([2, 1, 1])
    expect(counts(false)).toEqual([1, 1, 1])
    expect(plan({ groups }).missing[0]!.config).toEqual({ services: [service], image: 'new', metadata: noted('web') })
  })

  test('changes only the image of existing machines without a file', () => {
    const config = { env: { A: '1' }, services: [service] }
    const { changes, missing, obsolete: leftOver } = plan({ env: { B: '2' } }, machine('1', 'web', config))
    expect([missing, leftOver]).toEqual([[], []])
    expect(changes[0]!.config).toEqual({
      image: 'new',
      env: { A: '1', B: '2' },
      services: [service],
      metadata: { ...noted('web'), own: 'kept' },
    })
    expect(plan({ initialConfig: config }).missing).toEqual([
      { config: { ...config, image: 'new', metadata: noted('app') }, count: 2 },
    ])
  })

  test('keeps the volumes and sizes of machines', () => {
    const guest = { cpus: 2 }
    const before = { guest, mounts: [{ volume: 'vol_1', path: '/old' }], env: { OLD: '1' } }
    const groups = new Map([['app', { mounts: [{ name: 'd', path: '/new' }] }]])
    const { changes } = plan({ groups }, machine('1', 'app', before))
    expect(changes[0]!.config).toEqual({
      image: 'new',
      guest,
      mounts: [{ name: 'd', path: '/new', volume: 'vol_1' }],
      metadata: { ...noted('app'), own: 'kept' },
    })
    const sized = new Map([['app', { guest: { cpus: 4 } }]])
    expect(plan({ groups: sized }, machine('1', 'app', before)).changes[0]!.config.guest).toEqual({ cpus: 4 })
  })

  test('destroys machines whose group no longer exists', () => {
    const { changes, missing, obsolete: leftOver } = plan({ groups: new Map([['new', {}]]) }, machine('1', 'old'))
    expect([changes.length, missing.length, leftOver.map(({ id }) => id)]).toEqual([0, 1, ['1']])
  })
})

test.each([
  [1, 5, 1],
  [3, 5, 3],
  [0.5, 5, 2],
  [0.1, 5, 1],
] as const)('with %s of %i machines updates %i at once', (maxUnavailable, count, expected) => {
  expect(batchSizeFor({ strategy: 'rolling', maxUnavailable }, count)).toBe(expected)
})

test('an immediate deployment updates all machines at once', () => {
  expect(batchSizeFor({ strategy: 'immediate', maxUnavailable: 1 }, 5)).toBe(5)
  expect(batchSizeFor({ strategy: 'immediate', maxUnavailable: 1 }, 0)).toBe(1)
})

test('a canary deployment begins with one machine of each group, a started one if there is one', () => {
  const stopped = { state: 'stopped' } as const
  const all = [machine('1', 'a', {}, stopped), machine('2', 'a'), machine('3', 'a'), machine('4', 'b', {}, stopped)]
  const changes = all.map((one) => ({ machine: one, config: one.config }))
  expect(pickCanaries(changes).map(({ machine: { id } }) => id)).toEqual(['2', '4'])
})

test('bluegreen is refused for machines with volumes', () => {
  const says = 'bluegreen cannot replace machines with volumes or standbys; use rolling, canary or immediate'
  expect(() => requireReplaceable([{}, { mounts: [{ name: 'd', path: '/d' }] }])).toThrow(says)
  expect(() => requireReplaceable([{ standbys: ['1'] }])).toThrow(says)
  expect(() => requireReplaceable([{ mounts: [] }, {}])).not.toThrow()
})

describe('numbers of machines', () => {
  test('apply to a process group', () => {
    expect(parseCounts(['3'], ['app'])).toEqual(new Map([['app', 3]]))
    expect(parseCounts(['3'], ['a', 'b'], 'b')).toEqual(new Map([['b', 3]]))
    expect(parseCounts(['a=1', 'b=0'], ['a', 'b'])).toEqual(
      new Map([
        ['a', 1],
        ['b', 0],
      ]),
    )
  })

  test.each([
    [['x'], 'is neither a number'],
    [['3'], 'name the process group with --process: a, b'],
    [['c=1'], 'there is no process group "c"; the app has a, b'],
    [['a=1', 'a=2'], '"a" is given twice'],
  ])('rejects %j', (words, message) => {
    expect(() => parseCounts(words, ['a', 'b'])).toThrow(message)
  })

  test('destroy stopped machines first, then the newest', () => {
    const machines = [machine('1', 'a'), machine('2', 'a', {}, { state: 'stopped' }), machine('3', 'a')]
    expect(machinesToDestroy(machines, 1).map(({ id }) => id)).toEqual(['2', '3'])
    expect(machinesToDestroy(machines, 3)).toEqual([])
  })
})
