import { expect, test } from 'vitest'
import type { SandboxRoute } from '../../store/sandbox/route.ts'
import { createSandboxRoute } from './sandbox.ts'
import { RouteTable } from './table.ts'

const row: SandboxRoute = {
  id: 'sandbox-1',
  name: 'web',
  orgId: 'acme',
  slot: 3,
  state: 'running',
  urlAuth: 'sprite',
  privateAccess: 'org_users',
  readyAtMs: null,
  service: null,
  httpPort: null,
  wanted: null,
  health: null,
  failure: null,
}
const options = { sandboxDomain: 'sandbox.test', boxes: { homeNumber: 2 } }
const route = (changes: Partial<SandboxRoute> = {}) => createSandboxRoute({ ...row, ...changes }, options)

test('a sandbox without a service uses port 8080 at the address of its slot', () => {
  expect(route()).toMatchObject({ host: 'web.sandbox.test', address: '100.64.32.14', port: 8080, service: undefined })
  expect(createSandboxRoute(row, { ...options, boxes: 'host' }).address).toBe('127.0.0.1')
  expect(createSandboxRoute(row, { ...options, boxes: 'none' }).address).toBeNull()
})

test('a route has the service that owns the port and its health check', () => {
  const health = { check: { http: { path: '/up', port: 3000 } } }
  expect(route({ service: 'api', httpPort: 3000, wanted: false, health })).toMatchObject({
    port: 3000,
    service: { name: 'api', wanted: false, health: { path: '/up', port: 3000 } },
  })
})

test('a host name that moves to another sandbox is found there, in whatever order the changes arrive', () => {
  const table = new RouteTable()
  table.fill([route()])
  table.change(['sandbox-2'], [route({ id: 'sandbox-2', slot: 4 })])
  table.change(['sandbox-1'], [])
  expect(table.find('web.sandbox.test')?.id).toBe('sandbox-2')
  table.fill([])
  expect(table.find('web.sandbox.test')).toBeUndefined()
  expect(table.size).toBe(0)
})

test('a changed target does not reuse the connections of the old one', () => {
  const table = new RouteTable()
  const [before, after] = [route(), route({ httpPort: 3000, service: 'api', wanted: true })]
  table.fill([before])
  table.change(['sandbox-1'], [after])
  expect([table.hasKey(before.key), table.hasKey(after.key)]).toEqual([false, true])
})
