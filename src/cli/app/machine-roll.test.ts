import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { ApiError, CommandError } from '../errors.ts'
import type { Machine, MachineEvent } from './machine-find.ts'
import { endOfPreviousVersion, rollOut } from './machine-roll.ts'

// Nobody listens there: the log is read without fetch.
const platform = 'http://127.0.0.1:1'
const path = '/v1/apps/web/machines'
let asked: string[]
/** Answers that differ from those of a healthy platform, by method and path. */
let answers: Record<string, () => [status: number, body: object]>

beforeEach(() => {
  asked = []
  answers = {}
  vi.stubGlobal(
    'fetch',
    async (url: string, { method, headers }: { method: string; headers: Record<string, string> }) => {
      const key = `${method} ${url.replace(`${platform}${path}`, '').replace(/\?.*/, '')}`
      const nonce = headers['fly-machine-lease-nonce']
      asked.push(nonce ? `${key} ${nonce}` : key)
      const [status, body] = answers[key]?.() ?? [200, usual(key)]
      return new Response(JSON.stringify(body), { status })
    },
  )
})

afterEach(() => vi.unstubAllGlobals())

function usual(key: string): object {
  const id = key.split('/')[1]!
  return key.endsWith('/lease') ? { data: { nonce: `n-${id}` } } : machine(id)
}

function machine(id: string, change: Partial<Machine> = {}): Machine {
  const checks = [{ name: 'up', status: 'passing' as const, output: '', updated_at: '' }]
  const times = { created_at: '', updated_at: '' }
  return {
    id,
    name: id,
    state: 'started',
    region: 'local',
    instance_id: 'v1',
    version: 'v1',
    private_ip: '',
    image_ref: { registry: 'docker.io', repository: 'library/x', tag: '', digest: '', labels: {} },
    cordoned: false,
    restart_count: 0,
    config: { image: 'x' },
    checks,
    ...times,
    ...change,
  }
}

async function roll(machines: Machine[], { batchSize = 1, waitSeconds = 5 } = {}): Promise<string[]> {
  const shown: string[] = []
  const progress = { show: (text: string) => void shown.push(text), end: () => {} }
  const session = { url: platform, token: 'berth_x' }
  const changes = machines.map((one) => ({ machine: one, config: { image: 'new' } }))
  await rollOut({ session, app: 'web', progress, waitSeconds }, changes, batchSize)
  return shown
}

const stepsOf = (id: string) => [
  `POST /${id}/lease`,
  `POST /${id} n-${id}`,
  `GET /${id}/wait`,
  `GET /${id}`,
  `GET /${id}/wait`,
  `GET /${id}`,
  `GET /${id}`,
  `DELETE /${id}/lease n-${id}`,
]

describe('new versions', () => {
  test('are rolled out one after another, each under a lease', async () => {
    expect(await roll([machine('a'), machine('b')])).toEqual([
      'Updating machine a (1 of 2)',
      'Updating machine b (2 of 2)',
    ])
    expect(asked).toEqual([...stepsOf('a'), ...stepsOf('b')])
  })

  test('are rolled out together when several machines may be unavailable', async () => {
    await roll([machine('a'), machine('b')], { batchSize: 2 })
    expect(asked.slice(0, 2)).toEqual(['POST /a/lease', 'POST /b/lease'])
    expect(asked.toSorted()).toEqual([...stepsOf('a'), ...stepsOf('b')].toSorted())
  })

  test('do not start a machine that was stopped', async () => {
    answers['GET /a'] = () => [200, machine('a', { state: 'stopped' })]
    await roll([machine('a', { state: 'stopped' })])
    expect(asked).toEqual(stepsOf('a').toSpliced(4, 3))
  })

  test.each([
    { state: 'failed', failure: 'there is no such image' },
    { state: 'stopped', failure: 'it was started again and again' },
  ] as const)('start a machine that was $state because of a failure', async (before) => {
    let isUp = false
    answers['GET /a'] = () => [200, machine('a', { state: isUp ? 'started' : 'stopped' })]
    answers['POST /a/start'] = () => {
      isUp = true
      return [200, {}]
    }
    await roll([machine('a', before)])
    expect(asked).toEqual(stepsOf('a').toSpliced(4, 0, 'POST /a/start n-a'))
  })

  test('stop when another caller holds a lease', async () => {
    answers['POST /a/lease'] = () => [409, { error: 'lease held' }]
    await expect(roll([machine('a'), machine('b')])).rejects.toThrow(ApiError)
    expect(asked).toEqual(['POST /a/lease'])
  })

  test('stop when a machine does not start, and release the lease', async () => {
    answers['GET /a'] = () => [200, machine('a', { state: 'failed', failure: 'no such program' })]
    await expect(roll([machine('a'), machine('b')])).rejects.toThrow(
      'machine a is failed, not started: no such program',
    )
    expect(asked.at(-1)).toBe('DELETE /a/lease n-a')
    expect(asked.join()).not.toContain('/b')
  })

  test('stop when a check does not pass in time', async () => {
    const checks = [
      { name: 'up', status: 'critical' as const, output: 'refused', updated_at: '' },
      { name: 'other', status: 'passing' as const, output: '', updated_at: '' },
    ]
    answers['GET /a'] = () => [200, machine('a', { checks })]
    await expect(roll([machine('a')], { waitSeconds: 0 })).rejects.toThrow(
      'machine a: up did not pass within 0 s: refused',
    )
  })

  test('stop when a program whose checks passed has exited and waits for its restart', async () => {
    const last_exit = { exit_code: 3, guest_signal: -1, oom_killed: false, requested_stop: false, exited_at: '' }
    const crash = { restart_count: 2, last_exit, next_restart_at: '2026-01-01T00:00:00.000Z' }
    answers['GET /a'] = () => [200, machine('a', crash)]
    await expect(roll([machine('a')], { waitSeconds: 0 })).rejects.toThrow(
      'machine a is not up after 0 s: its program was restarted 2 times and last exited with code 3; it starts again at 2026',
    )
  })

  test('stop when a program without checks exits right after the start', async () => {
    const event = { id: 'e', status: 'started', source: 'flyd' as const, timestamp: 1 }
    const exit_event = { exit_code: 3, guest_signal: -1, oom_killed: false, requested_stop: false, exited_at: '' }
    const events = [
      { ...event, type: 'exit', request: { exit_event } },
      { ...event, type: 'start' },
    ]
    answers['GET /a'] = () => [200, machine('a', { checks: [], events })]
    const failure = roll([machine('a')])
    await expect(failure).rejects.toThrow(CommandError)
    await expect(failure).rejects.toThrow('the program of machine a exited with code 3 right after it was started')
  })

  test('ignore the exit of the previous version', async () => {
    const event = { id: 'e', status: 'started', source: 'flyd' as const, timestamp: 1 }
    const exit_event = { exit_code: 3, guest_signal: -1, oom_killed: false, requested_stop: false, exited_at: '' }
    const events = [
      { ...event, type: 'start' },
      { ...event, type: 'exit', request: { exit_event } },
    ]
    answers['GET /a'] = () => [200, machine('a', { checks: [], events })]
    expect(await roll([machine('a')])).toContain('Machine a is started')
  })

  test.each([
    ['a new machine', ['start', 'launch'], 0],
    ['a running machine, since its previous program exited', ['start', 'exit requested', 'update', 'start'], 5_500],
    ['a machine that crashes', ['exit', 'start', 'exit', 'start', 'exit requested', 'update'], 5_500],
    ['a machine that was stopped, since the update', ['exit', 'start', 'update', 'exit requested'], 5_000],
  ])('have their own log lines: %s', (_, types, expected) => {
    const exit_event = { exit_code: 0, guest_signal: -1, oom_killed: false, exited_at: '1970-01-01T00:00:05.500Z' }
    const events = types.map((text): MachineEvent => {
      const [type = '', requested] = text.split(' ')
      const request = { exit_event: { ...exit_event, requested_stop: requested !== undefined } }
      return { id: 'e', status: '', source: 'flyd', timestamp: 5_000, type, ...(type === 'exit' && { request }) }
    })
    expect(endOfPreviousVersion(events)).toBe(expected)
  })

  test('are waited for longer than the timeout of one request', async () => {
    let looks = 0
    answers['GET /a/wait'] = () => (++looks < 3 ? [408, { error: 'timeout' }] : [200, {}])
    await roll([machine('a')])
    expect(looks).toBe(4)
  })
})
