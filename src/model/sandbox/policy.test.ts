import { describe, expect, test } from 'vitest'
import { type NetworkRule, nameRules, readNetworkPolicy } from './policy.ts'

const allow = (domain: string): NetworkRule => ({ domain, action: 'allow' })
const deny = (domain: string): NetworkRule => ({ domain, action: 'deny' })

/** What a resolver makes of the rules: the closest name counts, and what is below a name before the name itself. */
function isAllowed(rules: NetworkRule[], name: string): boolean {
  const { otherwise, rules: all } = nameRules({ rules })
  const fitting = all.filter((rule) => name === rule.name || name.endsWith(`.${rule.name}`))
  const exact = fitting.find((rule) => !rule.below && rule.name === name)
  const below = fitting
    .filter((rule) => rule.below && rule.name !== name)
    .sort((one, other) => other.name.length - one.name.length)[0]
  return (exact ?? below)?.allowed ?? otherwise
}

describe('the names of a policy', () => {
  test('are denied unless a rule matches', () => {
    expect(isAllowed([allow('example.com')], 'example.com')).toBe(true)
    expect(isAllowed([allow('example.com')], 'www.example.com')).toBe(false)
    expect(isAllowed([allow('example.com')], 'example.org')).toBe(false)
    expect(isAllowed([allow('*')], 'example.org')).toBe(true)
  })

  test('follow the most specific rule', () => {
    const rules = [allow('*'), deny('*.evil.org'), allow('good.evil.org'), deny('deny.com')]
    expect(isAllowed(rules, 'evil.org')).toBe(true)
    expect(isAllowed(rules, 'a.evil.org')).toBe(false)
    expect(isAllowed(rules, 'good.evil.org')).toBe(true)
    expect(isAllowed(rules, 'a.good.evil.org')).toBe(false)
    expect(isAllowed(rules, 'deny.com')).toBe(false)
    expect(isAllowed(rules, 'www.deny.com')).toBe(true)
  })

  test('follow the later of two rules for the same name', () => {
    expect(isAllowed([allow('a.com'), deny('a.com')], 'a.com')).toBe(false)
  })

  test('include those of package registries with defaults', () => {
    expect(isAllowed([{ include: 'defaults' }], 'github.com')).toBe(true)
    expect(isAllowed([{ include: 'defaults' }], 'example.com')).toBe(false)
    expect(isAllowed([{ include: 'defaults' }, deny('github.com')], 'github.com')).toBe(false)
  })

  test.each(['', '*.', 'a..b', 'a b', 'a/b', 'a\nserver=1', '*.*', 'exa*mple.com', `${'a'.repeat(64)}.com`])(
    'cannot be %j',
    (domain) => {
      expect(() => readNetworkPolicy({ rules: [{ domain, action: 'allow' }] })).toThrow('domain must be a name')
    },
  )
})
