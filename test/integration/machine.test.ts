import { beforeEach, describe, expect, test } from 'vitest'
import { type CallOptions, usePlatform } from '../support/platform.ts'

const platform = usePlatform()
const { fake, call } = platform
const path = '/v1/apps/shop/machines'

const create = (extra: object = {}, config: object = {}, options: CallOptions = {}) =>
  call('POST', path, { body: { config: { image: 'nginx', ...config }, ...extra }, ...options })
const show = (id: string, options: CallOptions = {}) => call('GET', `${path}/${id}`, options)

beforeEach(async () => {
  await platform.createApp('shop')
})

describe('creating a machine', () => {
  test('answers with everything and starts it', async () => {
    const made = await create({ name: 'web' }, { env: { A: 'b' } })
    expect(made.body).toEqual({
      id: expect.stringMatching(/^[0-9a-f]{14}$/),
      name: 'web',
      state: 'created',
      region: 'local',
      instance_id: expect.stringMatching(/^[0-9A-HJKMNP-TV-Z]{26}$/),
      version: made.body.instance_id,
      private_ip: expect.stringMatching(/^fdaa:/),
      image_ref: { registry: 'docker.io', repository: 'library/nginx', tag: 'latest', digest: '', labels: {} },
      created_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/),
      updated_at: expect.stringMatching(/Z$/),
      cordoned: false,
      config: { image: 'nginx', env: { A: 'b' }, init: {}, guest: { cpu_kind: 'shared', cpus: 1, memory_mb: 256 } },
      incomplete_config: null,
      events: expect.any(Array),
      checks: [],
      host_status: 'ok',
    })
    expect(made.status).toBe(200)
    await platform.turn()
    expect(fake.machines.machines.get(made.body.id)).toMatchObject({ is: 'up', starts: 1 })
    const shown = await show(made.body.id)
    expect(shown.body).toMatchObject({ state: 'started', image_ref: { digest: expect.stringMatching(/^sha256:/) } })
    expect(
      shown.body.events.map(({ type, status, source }: Record<string, string>) => `${type} ${status} ${source}`),
    ).toEqual(['start started flyd', 'start starting flyd', 'launch created user'])
  })
})
