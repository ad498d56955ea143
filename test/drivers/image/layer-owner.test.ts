// A layer on disk belongs to whoever pulled it. These tests play an organization that knows the digests of another one's
// private image, and has a registry that says whatever it is told to.
import { existsSync, readFileSync, rmSync } from 'node:fs'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { type Home, openHome } from '../../../src/drivers/host/home.ts'
import type { Image } from '../../../src/drivers/image/driver.ts'
import { imageStore } from '../../../src/drivers/image/store.ts'
import { parseImageReference } from '../../../src/model/image.ts'
import { assemble, type Blob, type MadeImage, makeImage, makeLayer } from '../../support/image.ts'
import { loopbackPolicy } from '../../support/outbound.ts'
import { type Answer, type FakeRegistry, fakeRegistry, partsOf } from '../../support/registry.ts'
import { removeTemporaryHome, temporaryDirectory } from '../../support/temporary-home.ts'

const directory = temporaryDirectory()
const open: FakeRegistry[] = []
let home: Home
let number = 0

beforeAll(async () => {
  home = await openHome(`${directory}/home`, { uidBase: 300_000, registry: `${directory}/homes` })
})

afterEach(async () => {
  for (const registry of open.splice(0)) await registry.close()
})

afterAll(() => removeTemporaryHome(directory))

async function serve(image: MadeImage, blobs: Blob[] = partsOf(image), answer?: Answer): Promise<FakeRegistry> {
  const registry = await fakeRegistry({ latest: image.manifest }, blobs, answer)
  open.push(registry)
  return registry
}

function pull({ host }: { host: string }, name = 'app'): Promise<Image> {
  const limits = { maxTries: 1 }
  return imageStore({ home, limits, policy: loopbackPolicy() }).pullImage(parseImageReference(`${host}/${name}`, false))
}

/** An image with content that only its owner knows. */
function privateImage(): MadeImage {
  return makeImage({ layers: [{ files: [{ name: 'secret', content: `secret ${number++}` }] }] })
}

/** Claims to have every blob, but cannot send those it does not have. */
const liar: Answer = (request, response) => {
  if (request.method !== 'HEAD') return false
  response.writeHead(200).end()
  return true
}

function blobRequests(registry: FakeRegistry, image: MadeImage): number {
  return registry.requests.filter(({ path }) => path.endsWith(image.layers[0]!.digest)).length
}

test('a registry that names a foreign layer without having it does not get it', async () => {
  const secret = privateImage()
  await pull(await serve(secret))
  const own = makeLayer({ files: [{ name: 'own', content: 'own' }] })
  const theft = assemble([secret.layers[0]!, own])
  const attempts = [
    await serve(theft, [theft.config, own]),
    await serve(theft, [theft.config, own], liar),
    await serve(secret, [secret.config], liar),
  ]
  for (const registry of attempts) {
    await expect(pull(registry)).rejects.toMatchObject({ name: 'ImageError' })
    expect(blobRequests(registry, secret)).toBeGreaterThan(0)
  }
})

test('the digest of a foreign manifest does not give its image', async () => {
  const secret = privateImage()
  const { digest } = await pull(await serve(secret))
  const other = privateImage()
  const registry = await serve(other, partsOf(other), liar)
  await expect(pull(registry, `app@${digest}`)).rejects.toMatchObject({ name: 'ImageError' })
})

test('a blob of the own registry does not stand for a foreign layer', async () => {
  const secret = privateImage()
  const shared = await serve(secret)
  await pull(shared)
  // The attacker has a repository in the same registry, and a blob there that the configuration calls the foreign layer.
  const own = makeLayer({ files: [{ name: 'own', content: `own ${number++}` }] })
  const mixed = assemble([{ ...own, diffId: secret.layers[0]!.diffId }])
  await expect(pull(await serve(mixed, [mixed.config, own], liar))).rejects.toMatchObject({ code: 'damaged' })
})

test('a registry that stops to allow a caller stops the use of its layer', async () => {
  const secret = privateImage()
  let isAllowed = true
  const registry = await serve(secret, partsOf(secret), (_, response, path) => {
    if (isAllowed || !path.endsWith(secret.layers[0]!.digest)) return false
    response.writeHead(403).end()
    return true
  })
  await pull(registry)
  isAllowed = false
  await expect(pull(registry)).rejects.toMatchObject({ code: 'unauthorized' })
})

test('a registry that has the layer gets it, without unpacking it again', async () => {
  const image = privateImage()
  const first = await pull(await serve(image))
  const file = `${first.layers[0]}/secret`
  expect(readFileSync(file, 'utf8')).toMatch(/^secret/)
  rmSync(file)
  const other = await serve(image)
  const second = await pull(other)
  expect(second.layers).toEqual(first.layers)
  expect(existsSync(file)).toBe(false)
  expect(other.requests.filter(({ path }) => path.endsWith(image.layers[0]!.digest)).length).toBe(1)
})

test('a second pull from the same registry asks, and downloads no layer', async () => {
  const image = privateImage()
  const methods: string[] = []
  const registry = await serve(image, partsOf(image), (request, _, path) => {
    if (path.endsWith(image.layers[0]!.digest)) methods.push(request.method!)
    return false
  })
  await pull(registry)
  await pull(registry, 'other-repository')
  expect(methods).toEqual(['GET', 'HEAD'])
})
