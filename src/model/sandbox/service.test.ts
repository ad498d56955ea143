import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { readSignal } from '../signal.ts'
import { checkDefinition, readDefinition, type ServiceDefinition, startLevels, startOrder } from './service.ts'
import { stateOf } from './service-state.ts'

function service(name: string, needs: string[] = [], httpPort: number | null = null): ServiceDefinition {
  return readDefinition(name, { cmd: 'true', needs, http_port: httpPort })
}

describe('a service definition', () => {
  test('has every field, under either spelling of its port', () => {
    expect(readDefinition('web', { cmd: 'node', httpPort: 80 })).toEqual({
      name: 'web',
      cmd: 'node',
      args: [],
      needs: [],
      httpPort: 80,
      env: {},
      dir: null,
      health: null,
    })
  })

  test.each(['', 'signal', '-a', '.a', '_a', 'a b', 'a/b', 'ä', 'a'.repeat(64), 'a~b'])(
    'cannot be called %j',
    (name) => {
      expect(() => service(name)).toThrow()
    },
  )

  test('has existing dependencies without cycles', () => {
    const present = [service('a'), service('b', ['a']), service('c', ['b'])]
    expect(() => checkDefinition(service('d', ['c', 'a']), present)).not.toThrow()
    expect(() => checkDefinition(service('d', ['x']), present)).toThrow('needs: there is no service x')
    expect(() => checkDefinition(service('d', ['d']), present)).toThrow('service d cannot need itself')
    expect(() => checkDefinition(service('a', ['c']), present)).toThrow(
      'needs: a needs c needs b needs a is a dependency cycle',
    )
  })

  test('has the only HTTP port', () => {
    expect(() => checkDefinition(service('b', [], 81), [service('a', [], 80)])).toThrow(
      'another service already has an HTTP port configured',
    )
    expect(() => checkDefinition(service('a', [], 81), [service('a', [], 80)])).not.toThrow()
  })

  test('has one kind of health check, at a port', () => {
    const read = (health: object) => readDefinition('a', { cmd: 'true', health } as never).health
    expect(read({ command: ['true'], interval: '1s' })).toEqual({
      check: { command: ['true'] },
      intervalMs: 1000,
      timeoutMs: 5000,
      threshold: 3,
    })
    expect(() => read({})).toThrow('one of http and command')
    expect(() => read({ command: ['true'], http: { path: '/' } })).toThrow('one of http and command')
    expect(() => read({ http: { path: '/' } })).toThrow('health.http.port')
    expect(() => read({ command: ['true'], timeout: 'soon' })).toThrow('health.timeout')
  })
})

test('every service starts after its dependencies', () => {
  const graph = fc
    .array(fc.array(fc.nat(), { maxLength: 4 }), { minLength: 1, maxLength: 12 })
    .map((rows) => rows.map((row, at) => service(`s${at}`, at === 0 ? [] : row.map((need) => `s${need % at}`))))
  fc.assert(
    fc.property(graph, (services) => {
      for (const { name } of services) {
        const order = startOrder(name, services).map((one) => one.name)
        expect(order.at(-1)).toBe(name)
        for (const need of services.find((one) => one.name === name)!.needs) expect(order).toContain(need)
      }
      const levels = startLevels(services)
      expect(levels.flat().sort()).toEqual(services.map((one) => one.name).sort())
      const levelOf = (name: string) => levels.findIndex((names) => names.includes(name))
      for (const { name, needs } of services)
        for (const need of needs) expect(levelOf(need)).toBeLessThan(levelOf(name))
    }),
  )
})

test.each([
  ['TERM', 15],
  ['sigterm', 15],
  ['SigHup', 1],
  ['9', 9],
  [10, 10],
])('%j is a signal', (text, number) => expect(readSignal(text)).toBe(number))

test.each(['', 'SIG', 'NOPE', '0', '65', '-1', 'TERM KILL', 0])('%j is not a signal', (text) => {
  expect(() => readSignal(text)).toThrow('is not a signal')
})

describe('the state', () => {
  const web = { ...service('web'), wanted: true, revision: 1, stopMs: null, problem: null }
  const up = { is: 'up', wanted: true, ready: true, pid: 7, begunAtMs: 0, restarts: 0, health: undefined } as const
  const ended = { wanted: true, sinceMs: 0, end: { code: 3, problem: undefined }, restarts: 2, nextRestartAtMs: 1000 }

  test.each([
    ['running', web, up],
    ['starting', web, { ...up, ready: false }],
    ['starting', web, { ...up, begunAtMs: undefined }],
    ['stopping', { ...web, wanted: false }, up],
    ['stopping', web, { ...up, wanted: false }],
    ['failed', web, { is: 'ending', ...ended }],
    ['failed', web, { is: 'down', ...ended }],
    ['starting', web, { is: 'down', ...ended, end: undefined }],
    ['stopped', { ...web, wanted: false }, { is: 'down', ...ended, wanted: false }],
    ['stopping', { ...web, wanted: false }, { is: 'ending', ...ended, wanted: false }],
    ['stopping', web, { is: 'ending', ...ended, wanted: false }],
    ['starting', web, { is: 'down', ...ended, wanted: false }],
    ['starting', web, { is: 'absent' }],
    ['stopped', { ...web, wanted: false }, { is: 'absent' }],
  ] as const)('is %s', (status, row, found) => {
    const state = stateOf(row, found, true)
    expect(state.status).toBe(status)
    const runs = found.is === 'up' && found.begunAtMs !== undefined
    expect('pid' in state && 'started_at' in state).toBe(runs)
  })

  test('contains the failure and the time of the next restart', () => {
    expect(stateOf(web, { is: 'ending', ...ended }, true)).toEqual({
      name: 'web',
      status: 'failed',
      error: 'exited with code 3',
      exit_code: 3,
      restart_count: 2,
      next_restart_at: '1970-01-01T00:00:01.000Z',
    })
  })
})
