// Runs the published fly-admin client, unmodified, against the whole platform.
import { createRequire } from 'node:module'
import type fly from 'fly-admin/dist/client.js'
import { AddressType } from 'fly-admin/dist/lib/network.js'
import { beforeEach, describe, expect, test } from 'vitest'
import { usePlatform } from '../../support/platform.ts'

type Client = fly.default
const FlyAdmin: typeof fly.default = createRequire(import.meta.url)('fly-admin/dist/client').default

const platform = usePlatform()
let url = ''
let client: Client

beforeEach(async () => {
  url ||= await platform.server.listen({ host: '127.0.0.1', port: 0 })
  client = clientWith(platform.rootToken)
})

const clientWith = (token: string) => new FlyAdmin(token, { apiUrl: url, graphqlUrl: url })

describe('fly-admin', () => {
  test('works with apps', async () => {
    await client.App.createApp({ org_slug: 'personal', app_name: 'shop', network: 'blue' } as never)
    expect(await client.App.listApps('personal')).toMatchObject({ total_apps: 1, apps: [{ name: 'shop' }] })
    expect(await client.App.getApp('shop')).toMatchObject({ name: 'shop', organization: { slug: 'personal' } })
    expect(await client.App.getAppDetailed('shop')).toEqual({
      name: 'shop',
      status: 'pending',
      organization: { name: 'Personal', slug: 'personal' },
      ipAddresses: [],
    })
    await client.App.deleteApp('shop')
    await expect(client.App.getApp('shop')).rejects.toThrow('404: {"error":"app not found"}')
    await expect(client.App.getAppDetailed('shop')).rejects.toThrow('Could not find App')
  })

  test('works with organizations and regions', async () => {
    const { organization } = await client.Organization.getOrganization('personal')
    expect(organization).toMatchObject({ slug: 'personal', name: 'Personal', type: 'PERSONAL', viewerRole: 'admin' })
    await expect(client.Organization.getOrganization('none')).rejects.toThrow('Could not find Organization')
    const { platform: answer } = await client.Regions.getRegions()
    expect(answer).toMatchObject({ requestRegion: 'local', regions: expect.any(Array) })
  })

  test('works with addresses', async () => {
    await platform.createApp('shop')
    const { allocateIpAddress } = await client.Network.allocateIpAddress({ appId: 'shop', type: AddressType.v4 })
    const { address } = allocateIpAddress.ipAddress!
    expect((await client.App.getAppDetailed('shop')).ipAddresses).toEqual([{ type: 'v4', region: 'global', address }])
    expect(await client.Network.releaseIpAddress({ appId: 'shop', ip: address })).toEqual({
      releaseIpAddress: { app: { name: 'shop' } },
    })
    await expect(client.Network.releaseIpAddress({ appId: 'shop', ip: address })).rejects.toThrow('does not have')
  })

  test('works with secrets', async () => {
    await platform.createApp('shop')
    const secrets = [{ key: 'A', value: 'b' }]
    expect(await client.Secret.setSecrets({ appId: 'shop', secrets })).toEqual({ setSecrets: { release: null } })
    expect((await platform.call('GET', '/v1/apps/shop/secrets')).body.secrets).toMatchObject([{ name: 'A' }])
    expect(await client.Secret.unsetSecrets({ appId: 'shop', keys: ['A'] })).toEqual({
      unsetSecrets: { release: null },
    })
    expect((await platform.call('GET', '/v1/apps/shop/secrets')).body.secrets).toEqual([])
  })

  test('works with volumes', async () => {
    await platform.createApp('shop')
    const made = await client.Volume.createVolume({
      app_name: 'shop',
      name: 'data',
      region: 'local',
      size_gb: 1,
    } as never)
    const volume = { app_name: 'shop', volume_id: made.id }
    await platform.workUntil('volume', 'created')
    expect(await client.Volume.getVolume(volume)).toMatchObject({ name: 'data', size_gb: 1 })
    expect(await client.Volume.listVolumes('shop')).toMatchObject([{ id: made.id }])
    expect(await client.Volume.extendVolume({ ...volume, size_gb: 2 })).toMatchObject({ volume: { size_gb: 2 } })
    await platform.workUntil('volume', 'created')
    expect(await client.Volume.listSnapshots(volume)).toEqual([])
    expect(await client.Volume.deleteVolume(volume)).toMatchObject({ id: made.id })
  })

  test('works with machines', async () => {
    await platform.createApp('shop')
    const made = await client.Machine.createMachine({ app_name: 'shop', config: { image: 'nginx' } } as never)
    const machine = { app_name: 'shop', machine_id: made.id! }
    await platform.workUntil('machine', 'started')
    expect(await client.Machine.waitMachine({ ...machine, state: 'started', timeout: '5s' } as never)).toMatchObject({
      ok: true,
    })
    expect(await client.Machine.listMachines('shop')).toMatchObject([{ id: made.id, state: 'started' }])
    expect(await client.Machine.getMachine(machine)).toMatchObject({ state: 'started', config: { image: 'nginx' } })
    const lease = (await client.Machine.acquireLease({ ...machine, ttl: 5 })) as { data: { nonce: string } }
    expect(await client.Machine.getLease(machine)).toMatchObject({ data: { nonce: lease.data.nonce } })
    await expect(client.Machine.cordonMachine(machine)).rejects.toThrow('409')
    await platform.sql('update machine set lease_until = now()')
    expect(await client.Machine.cordonMachine(machine)).toEqual({ ok: true })
    expect(await client.Machine.uncordonMachine(machine)).toEqual({ ok: true })
    await client.Machine.updateMachine({ ...machine, config: { image: 'nginx', env: { A: 'b' } } } as never)
    await platform.workUntil('machine', 'started')
    expect(await client.Machine.listVersions(machine)).toHaveLength(2)
    expect((await client.Machine.listEvents(machine)).length).toBeGreaterThan(2)
    expect(await client.Machine.signalMachine({ ...machine, signal: 'SIGHUP' } as never)).toEqual({ ok: true })
    expect(await client.Machine.listProcesses(machine as never)).toEqual(expect.any(Array))
    await client.Machine.restartMachine(machine as never)
    await platform.workUntil('machine', 'started')
    await client.Machine.stopMachine(machine as never)
    await platform.workUntil('machine', 'stopped')
    expect(await client.Machine.getMachine(machine)).toMatchObject({ state: 'stopped' })
    await client.Machine.startMachine(machine)
    await platform.workUntil('machine', 'started')
    expect(await client.Machine.getMachine(machine)).toMatchObject({ state: 'started' })
    expect(await client.App.getAppDetailed('shop')).toMatchObject({ status: 'deployed' })
    expect(await client.Machine.deleteMachine({ ...machine, force: true })).toEqual({ ok: true })
    await platform.workUntil('machine', 'destroyed')
    expect(await client.Machine.getMachine(machine)).toMatchObject({ state: 'destroyed' })
  })

  test('gets an error for an invalid token, and works with a macaroon token', async () => {
    await expect(clientWith('wrong').App.getApp('shop')).rejects.toThrow('401')
    await expect(clientWith('wrong').Organization.getOrganization('personal')).rejects.toThrow('401')
    const token = await platform.createToken('org', 'personal', { format: 'fm2' })
    expect(await clientWith(token).Organization.getOrganization('personal')).toHaveProperty('organization')
  })
})
