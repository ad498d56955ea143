import { existsSync, mkdtempSync, rmSync, statSync } from 'node:fs'
import { request } from 'node:http'
import { tmpdir } from 'node:os'
import pino from 'pino'
import { afterAll, beforeEach, describe, expect, test } from 'vitest'
import { machinePaths } from '../../../src/drivers/machine/paths.ts'
import { openMachineSockets } from '../../../src/main/inside/machine.ts'
import { machineFeed } from '../../../src/store/app/machine-feed.ts'
import { machinesOf } from '../../support/machine-platform.ts'
import { type Method, usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()
const machines = machinesOf(platform, 'shop')
const { path } = machines

beforeEach(async () => {
  await platform.createApp('shop')
})

describe('a machine without a token', () => {
  async function place(id: string): Promise<string> {
    return (await machines.call('GET', id)).body.private_ip
  }

  /** Sends the request as the listener for machines does. */
  const ask = (address: string, method: Method, url: string, body?: object) =>
    platform.call(method, url, { token: null, headers: { 'berth machine': address }, ...(body && { body }) })

  test('can read and change itself', async () => {
    const id = await machines.started({}, { metadata: { role: 'web' } })
    const address = await place(id)
    const reads = ['', '/events', '/versions', '/metadata', '/metadata/role', '/memory', '/ps', '/logs', '/wait']
    for (const rest of reads) expect((await ask(address, 'GET', `${path}/${id}${rest}`)).status, rest).toBe(200)
    expect((await ask(address, 'POST', `${path}/${id}/cordon`)).body).toEqual({ ok: true })
    expect((await machines.call('GET', id)).body.cordoned).toBe(true)
    expect((await ask(address, 'POST', `${path}/${id}/exec`, { command: [] })).status).toBe(400)
    expect((await ask(address, 'POST', `${path}/${id}/stop`, { timeout: 'soon' })).status).toBe(400)
    expect((await ask(address, 'POST', `${path}/${id}/stop`)).body).toEqual({ ok: true })
    await machines.settle()
    expect(await machines.state(id)).toBe('stopped')
    // The internal token that allows this is never shown and is removed with the machine.
    const { tokens } = (await platform.call('GET', '/v1/tokens')).body
    expect(tokens.filter((token: { id: string }) => token.id === id)).toEqual([])
    expect(await platform.sql('select kind from token where inside')).toEqual([{ kind: 'app' }])
    expect((await ask(address, 'DELETE', `${path}/${id}`)).body).toEqual({ ok: true })
    await machines.settle()
    expect(await platform.sql('select 1 from token where inside')).toEqual([])
    expect((await ask(address, 'GET', `${path}/${id}`)).status).toBe(401)
  })

  test('cannot access anything else, nor what only its owner decides', async () => {
    await platform.createApp('other')
    const [id, sibling] = [await machines.started(), await machines.started()]
    const address = await place(id)
    const config = { image: 'nginx' }
    const asked: [Method, string, object?][] = [
      ['GET', `${path}/${sibling}`],
      ['POST', `${path}/${sibling}/stop`],
      ['POST', `${path}/${sibling}/exec`, { command: ['true'] }],
      ['GET', `/v1/apps/other/machines/${id}`],
      ['GET', path],
      ['POST', path, { config }],
      ['POST', `${path}/${id}`, { config }],
      ['PUT', `${path}/${id}/metadata`, { metadata: { role: 'other' } }],
      ['POST', `${path}/${id}/metadata/role`, { value: 'other' }],
      ['DELETE', `${path}/${id}/metadata/role`],
      ['POST', `${path}/${id}/lease`, { ttl: 60 }],
      ['GET', '/v1/apps/shop'],
      ['DELETE', '/v1/apps/shop'],
      ['GET', '/v1/apps/shop/secrets?show_secrets=true'],
      ['GET', '/v1/orgs'],
      ['POST', '/graphql', { query: '{ viewer { id } }' }],
    ]
    for (const [method, url, body] of asked) {
      expect((await ask(address, method, url, body)).status, `${method} ${url}`).toBe(401)
    }
    for (const stranger of ['', '::1', address.replace(/:[0-9a-f]+:2$/, ':1:2')]) {
      expect((await ask(stranger, 'GET', `${path}/${id}`)).status, stranger).toBe(401)
    }
    expect((await platform.call('GET', `${path}/${id}`, { token: null })).status).toBe(401)
    // An invalid token is refused, although no token would be accepted.
    const headers = { 'berth machine': address }
    expect((await platform.call('GET', `${path}/${id}`, { token: 'berth_no', headers })).status).toBe(401)
    expect((await platform.call('GET', `${path}/${sibling}`, { headers })).status).toBe(200)
  })
})

describe('the socket in a machine', () => {
  const directory = mkdtempSync(`${tmpdir()}/berth-`)
  const home = { path: directory, tree: `${directory}/tree`, log: `${directory}/log`, number: 0 }
  const feed = machineFeed(() => platform.database.config)
  const socketOf = (id: string) => `${machinePaths(home, id).inside}/api`

  afterAll(async () => {
    await feed.close()
    rmSync(directory, { recursive: true, force: true })
  })

  function open() {
    const world = platform.fake.world(platform.database.db)
    return openMachineSockets({ home, db: platform.database.db, log: pino({ level: 'silent' }), world }, feed)
  }

  function ask(id: string, url: string, headers = {}): Promise<number> {
    return new Promise((resolve, reject) => {
      const asked = request({ socketPath: socketOf(id), path: url, headers }, (answer) => {
        answer.resume()
        resolve(answer.statusCode!)
      })
      asked.on('error', reject).end()
    })
  }

  test('exists in running machines and identifies the machine', async () => {
    const first = await machines.started()
    const inside = open()
    await platform.server.ready()
    await inside.start(platform.server)
    try {
      const second = await machines.started()
      await until(() => existsSync(socketOf(second)))
      for (const id of [first, second]) {
        expect(await ask(id, `${path}/${id}`)).toBe(200)
        expect(await ask(id, `${path}/${id}`, { host: '' })).toBe(200)
        expect(await ask(id, `${path}/${id === first ? second : first}`)).toBe(401)
        expect(await ask(id, path)).toBe(401)
        expect(await ask(id, path, { authorization: `Bearer ${platform.rootToken}` })).toBe(200)
      }
      expect(statSync(`${machinePaths(home, first).directory}/api`).mode & 0o777).toBe(0o700)
      await inside.machines.removeMachine(first, 1)
      await expect(ask(first, `${path}/${first}`)).rejects.toThrow()
    } finally {
      await inside.close()
    }
  })

  test('exists before the program starts', async () => {
    const inside = open()
    await platform.server.ready()
    await inside.start(platform.server)
    try {
      const { id } = (await machines.create()).body
      await inside.machines.startMachine({ id, instanceId: 'first', limits: {}, containers: [] } as never)
      expect(existsSync(socketOf(id))).toBe(true)
    } finally {
      await inside.close()
    }
  })
})
