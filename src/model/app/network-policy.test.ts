import { describe, expect, test } from 'vitest'
import { type AppPolicy, type PolicyRule, readPolicy, trafficOf } from './network-policy.ts'

const rule = (direction: PolicyRule['direction'], ...ports: PolicyRule['ports']): PolicyRule => {
  return { action: 'allow', direction, ports }
}
const policy = (selector: AppPolicy['selector'], ...rules: PolicyRule[]): AppPolicy => {
  return { id: 'p', name: 'p', selector, rules }
}
const machine = (metadata?: Record<string, string>) => ({
  id: 'aaaaaaaaaaaaaa',
  config: { image: 'nginx', ...(metadata && { metadata }) },
})

describe('the traffic of a machine', () => {
  test('is unrestricted without policies, and in a direction without rules', () => {
    expect(trafficOf([], machine())).toEqual({})
    expect(trafficOf([policy({ all: true })], machine())).toEqual({})
    expect(trafficOf([policy({ all: true }, rule('egress'))], machine())).toEqual({ egress: { tcp: [], udp: [] } })
  })

  test('is allowed if any rule of any policy allows it', () => {
    const web = rule('ingress', { protocol: 'tcp', port: 443 }, { protocol: 'tcp', port: 80 })
    const names = rule('ingress', { protocol: 'udp', port: 53 }, { protocol: 'tcp', port: 80 })
    expect(trafficOf([policy({ all: true }, web), policy({ all: true }, names)], machine())).toEqual({
      ingress: { tcp: [80, 443], udp: [53] },
    })
  })

  test('is restricted by the policies whose conditions all match', () => {
    const selects = (selector: AppPolicy['selector'], metadata?: Record<string, string>) =>
      trafficOf([policy(selector, rule('egress'))], machine(metadata)).egress !== undefined
    const { id } = machine()
    expect(selects({ machines: [{ id: 'bbbbbbbbbbbbbb' }, { id }] })).toBe(true)
    expect(selects({ machines: [{ id: 'bbbbbbbbbbbbbb' }] })).toBe(false)
    expect(selects({ all: true, machines: [{ id: 'bbbbbbbbbbbbbb' }] })).toBe(false)
    expect(selects({ metadata: { role: 'web' } })).toBe(false)
    expect(selects({ metadata: { role: 'web' } }, { role: 'web', env: 'test' })).toBe(true)
    expect(selects({ metadata: { role: 'web', env: 'production' } }, { role: 'web', env: 'test' })).toBe(false)
    expect(selects({ machines: [{ id }], metadata: { role: 'web' } }, { role: 'db' })).toBe(false)
    expect(selects({ metadata: { toString: 'x' } })).toBe(false)
  })
})

test('empty lists in a policy count as absent', () => {
  const read = readPolicy({ name: 'p', selector: { all: true, machines: [], metadata: {} } })
  expect(read).toEqual({ name: 'p', selector: { all: true }, rules: [] })
  expect(() => readPolicy({ name: 'p', selector: { all: false, machines: [], metadata: {} } })).toThrow('at least one')
})
