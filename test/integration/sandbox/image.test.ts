import { beforeEach, expect, test } from 'vitest'
import { collectImages } from '../../../src/reconcile/app/image-collection.ts'
import { wakeSandbox } from '../../../src/store/sandbox/route.ts'
import { type CallOptions, usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { fake, callSandbox: call } = platform

const create = (image: unknown, options: CallOptions = {}) =>
  call('POST', '/v1/sandboxes', { body: { name: 'box', image }, ...options })
const show = async () => (await call('GET', '/v1/sandboxes/box')).body
/** Any request that uses the sandbox starts it. */
const use = () => call('POST', '/v1/sandboxes/box/restart')

async function turn(): Promise<void> {
  await platform.sql('update work set run_at = now(), leased_until = null')
  await platform.turn()
}

beforeEach(() => fake.reset())

test('the image is pulled with the first use and pinned by its digest', async () => {
  expect(await create('debian:12')).toMatchObject({
    status: 201,
    body: { image: { reference: 'docker.io/library/debian:12' } },
  })
  expect(fake.images.pulls).toBe(0)
  expect((await use()).status).toBe(200)
  const { id, image } = await show()
  expect(image).toEqual({ reference: 'docker.io/library/debian:12', digest: expect.stringMatching(/^sha256:/) })
  expect(fake.specs.get(id)?.image).toEqual({
    digest: image.digest,
    env: { FROM: 'image', PATH: '/bin' },
    workingDir: '/',
  })
  await turn()
  expect((await use()).status).toBe(200)
  expect(fake.images.pulls).toBe(1)
  await collectImages(fake.world(platform.database.db), Date.now() + 10 * 3_600_000)
  expect([...fake.images.pulled.keys()]).toEqual([image.digest])
})

test('an image that cannot be pulled is reported to the caller, and the sandbox stays as it was', async () => {
  fake.images.available = new Set()
  await create('nothing')
  const refused = await use()
  expect(refused).toMatchObject({ status: 409, body: { message: expect.stringContaining('there is no image') } })
  expect(await show()).toMatchObject({ status: 'cold', image: { problem: expect.stringContaining('no image') } })
  expect((await call('GET', '/v1/sandboxes/box/check')).body).toMatchObject({ status: 'unhealthy' })
  fake.images.available = null
  expect((await use()).status).toBe(200)
  expect((await show()).image.problem).toBeUndefined()
})

test('a request to the URL pulls the image too, and retries until it succeeds', async () => {
  fake.images.available = new Set()
  await create('late')
  const { id } = await show()
  await platform.database.db.transaction((tx) => wakeSandbox(tx, id))
  await turn()
  expect((await show()).image.problem).toContain('there is no image')
  expect(fake.boxesUp.get(id)).toBeUndefined()
  fake.images.available = null
  await turn()
  expect(fake.boxesUp.get(id)).toBe(true)
  expect((await show()).image).toMatchObject({ digest: expect.any(String) })
})

test('images on the host need the root token, and invalid references are refused', async () => {
  const token = await platform.createToken('org', 'personal')
  expect(await create('tar:/image.tar', { token })).toMatchObject({
    status: 400,
    body: { message: expect.stringContaining('root token') },
  })
  expect((await create('Not One', { token: 'berth_wrong' })).status).toBe(401)
  expect(await create('Not One')).toMatchObject({
    status: 400,
    body: { message: expect.stringMatching(/^image is not/) },
  })
  expect((await create('tar:/image.tar')).status).toBe(201)
})

test('a sandbox whose image was never pulled can be deleted', async () => {
  fake.images.available = new Set()
  await create('nothing')
  expect((await call('DELETE', '/v1/sandboxes/box')).status).toBe(204)
  await turn()
  expect(await platform.sql(`select state from sandbox`)).toEqual([{ state: 'deleted' }])
})
