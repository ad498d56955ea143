import { describe, expect, test } from 'vitest'
import { checkAccess, readAction, type TokenAccess } from './token-check.ts'

describe('the access to check', () => {
  test.each([
    [undefined, ''],
    ['', ''],
    [0, ''],
    ['r', 'r'],
    [1, 'r'],
    ['Cwr', 'rwC'],
    [19, 'rwC'],
    ['*', 'rwcdC'],
    [31, 'rwcdC'],
  ])('has an action parsed from %j', (action, letters) => {
    expect(readAction(action)).toBe(letters)
  })

  test.each<[TokenAccess]>([
    [{ org_slug: 'a' }],
    [{ app_name: 'a' }],
    [{ machine_id: 'a' }],
    [{ volume_id: 'a' }],
    [{ org_slug: 'a', app_name: 'a', machine_id: 'a', command: ['ls'], source_machine: 'b', mutation: 'm' }],
    [{ org_slug: 'a', org_feature: 'billing' }],
    [{ app_name: 'a', app_feature: 'images' }],
  ])('is valid: %j', (access) => {
    expect(() => checkAccess(access)).not.toThrow()
  })

  test.each<[TokenAccess, string]>([
    [{}, 'must name'],
    [{ action: 'r', source_machine: 'a' }, 'must name'],
    [{ machine_id: 'a', app_feature: 'b' }, 'access.app_feature requires access.app_name'],
    [{ app_name: 'a', command: [] }, 'access.command requires access.machine_id'],
    [{ app_name: 'a', storage_object: 'b' }, 'access.storage_object requires access.org_slug'],
    [{ machine_id: 'a', volume_id: 'b' }, 'access.machine_id and access.volume_id exclude'],
    [{ org_slug: 'a', org_feature: 'b', app_name: 'c' }, 'access.org_feature and access.app_name exclude'],
    [{ machine_id: 'a', command: ['b'], machine_feature: 'c' }, 'access.machine_feature and access.command exclude'],
  ])('is invalid: %j', (access, sentence) => {
    expect(() => checkAccess(access)).toThrow(sentence)
  })
})
