// Connections end when the token that permitted them ends, also when a caveat ends it.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import type { BoxDriver, BoxSession } from '../../../src/drivers/box/driver.ts'
import { ExecSocket } from '../../support/exec.ts'
import { attenuate, caveat, masks } from '../../support/macaroon.ts'
import { usePlatform } from '../../support/platform.ts'
import { hostSessions } from '../../support/session.ts'
import { until } from '../../support/until.ts'

const directory = mkdtempSync(`${tmpdir()}/berth-attenuation-`)
const held = new Set<BoxSession>()
const sockets: ExecSocket[] = []

/** Runs commands on the host. */
const boxes: Partial<BoxDriver> = { async ensureBox() {}, ...hostSessions(directory, held) }

const platform = usePlatform({ boxes })
let address: string
let issued: { id: string; token: string }

beforeAll(async () => {
  address = await platform.sandboxServer.listen({ host: '127.0.0.1', port: 0 })
})

beforeEach(async () => {
  expect((await platform.callSandbox('POST', '/v1/sandboxes', { body: { name: 'box' } })).status).toBe(201)
  const body = { kind: 'org', org_slug: 'personal', format: 'fm2' }
  issued = (await platform.call('POST', '/v1/tokens', { body })).body
})

afterEach(async () => {
  for (const { socket } of sockets.splice(0)) socket.terminate()
  for (const session of held) session.signal(9)
  await until(() => held.size === 0)
})

afterAll(() => {
  rmSync(directory, { recursive: true, force: true })
})

async function open(token: string): Promise<ExecSocket> {
  const socket = await ExecSocket.open(`${address}/v1/sandboxes/box/exec?cmd=cat&stdin=true`, token)
  sockets.push(socket)
  socket.stdin('here\n')
  await until(() => socket.output(1) === 'here\n')
  return socket
}

const seconds = () => Math.floor(Date.now() / 1000)

test('a command ends with the validity of an appended caveat, and no other one does', async () => {
  const end = seconds() + 8
  const unlimited = await open(attenuate(issued.token, caveat.validity(0, seconds() + 3600)))
  const limited = await open(attenuate(issued.token, caveat.validity(0, end)))
  expect(Date.now()).toBeLessThan(end * 1000)
  await until(() => limited.closed !== undefined)
  expect(limited.closed).toEqual({ code: 1008 })
  expect(Date.now()).toBeGreaterThanOrEqual(end * 1000)
  expect(unlimited.closed).toBeUndefined()
})

test('a command ends when the token is revoked from which its token was derived', async () => {
  const socket = await open(attenuate(issued.token, caveat.features({ sandbox: masks.all })))
  expect((await platform.call('DELETE', `/v1/tokens/${issued.id}`)).status).toBe(204)
  await until(() => socket.closed !== undefined)
  expect(socket.closed).toEqual({ code: 1008 })
})

test('a command is not started with a token whose caveats do not permit it', async () => {
  for (const token of [
    attenuate(issued.token, caveat.action(masks.r)),
    attenuate(issued.token, caveat.features({ postgres: masks.all })),
    attenuate(issued.token, caveat.apps([1, masks.all])),
    attenuate(issued.token, caveat.validity(0, seconds() - 1)),
  ])
    await expect(open(token)).rejects.toThrow()
  expect(held.size).toBe(0)
})
