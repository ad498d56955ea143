import { beforeEach, describe, expect, test } from 'vitest'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { fake } = platform
const machines = machinesOf(platform, 'shop')
const { create, started, settle } = machines

beforeEach(async () => {
  await platform.createApp('shop')
})

describe('waiting', () => {
  test('ends with the change, the failure or the timeout', async () => {
    const { body } = await create()
    const waiting = machines.call('GET', body.id, '/wait?timeout=30')
    await settle()
    const shown = (await machines.call('GET', body.id)).body
    expect(await waiting).toMatchObject({
      status: 200,
      body: { ok: true, state: 'started', version: body.version, event_id: shown.events[0].id },
    })
    expect(await machines.call('GET', body.id, '/wait?state=stopped&timeout=0')).toMatchObject({
      status: 408,
      body: { error: 'deadline_exceeded: machine failed to reach desired state, stopped, currently started' },
    })
    for (const query of [
      'state=stopped,started',
      'state=stopped&state=started',
      'state=settled',
      `state=started&instance_id=${body.version}`,
    ]) {
      expect((await machines.call('GET', body.id, `/wait?${query}`)).status).toBe(200)
    }
    expect((await machines.call('GET', body.id, '/wait?state=odd')).status).toBe(400)
    expect((await machines.call('GET', body.id, '/wait?timeout=soon')).status).toBe(400)
    expect((await machines.call('GET', body.id, '/wait?version=odd')).status).toBe(400)
    expect((await machines.call('GET', body.id, '/wait?from_event_id=odd')).status).toBe(400)
  })

  test('starts from an event, and supports versions', async () => {
    const id = await started()
    const before = (await machines.call('GET', id)).body
    const from = before.events[0].id
    expect((await machines.call('GET', id, `/wait?from_event_id=${from}&timeout=0`)).status).toBe(408)
    await machines.call('POST', id, '/stop')
    await settle()
    await machines.call('POST', id, '/start')
    await settle()
    expect((await machines.call('GET', id, `/wait?state=stopped&from_event_id=${from}`)).body.state).toBe('stopped')
    await machines.call('POST', id, '', { body: { config: { image: 'caddy' } } })
    await settle()
    expect((await machines.call('GET', id, `/wait?state=stopped&instance_id=${before.version}`)).status).toBe(200)
    const refused = (state: string) => ({
      status: 412,
      body: { error: `failed_precondition: machine failed to reach desired state, started, currently ${state}` },
    })
    expect(await machines.call('GET', id, `/wait?state=started&instance_id=${before.version}`)).toMatchObject(
      refused('replaced'),
    )
    await machines.call('DELETE', id, '?force=1')
    await settle()
    expect((await machines.call('GET', id, '/wait?state=destroyed')).status).toBe(200)
    expect(await machines.call('GET', id, '/wait?state=started')).toMatchObject(refused('destroyed'))
    fake.images.available = new Set()
    const { body } = await create()
    await settle()
    expect(await machines.call('GET', body.id, '/wait?state=started')).toMatchObject(
      refused('destroyed: there is no image docker.io/library/nginx:latest'),
    )
  })
})
