import { chmodSync, readdirSync, writeFileSync } from 'node:fs'
import type { ServerResponse } from 'node:http'
import { gzipSync, zstdCompressSync } from 'node:zlib'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { type Home, openHome } from '../../../src/drivers/host/home.ts'
import type { Image } from '../../../src/drivers/image/driver.ts'
import type { ImageLimits } from '../../../src/drivers/image/limits.ts'
import { imageStore } from '../../../src/drivers/image/store.ts'
import { parseImageReference } from '../../../src/model/image.ts'
import { type Blob, digestOf, jsonBlob, type MadeImage, makeImage, makeIndex } from '../../support/image.ts'
import { loopbackPolicy } from '../../support/outbound.ts'
import { type Answer, type FakeRegistry, fakeRegistry, partsOf } from '../../support/registry.ts'
import { removeTemporaryHome, temporaryDirectory } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const directory = temporaryDirectory()
let home: Home
const open: FakeRegistry[] = []
let number = 0

beforeAll(async () => {
  home = await openHome(`${directory}/home`, { uidBase: 300_000, registry: `${directory}/homes` })
})

afterEach(async () => {
  for (const registry of open.splice(0)) await registry.close()
  // Incomplete layers have no final name.
  const left = readdirSync(`${home.path}/image/layer`).filter((name) => !/^[0-9a-f]{64}$/.test(name))
  expect(left).toEqual([])
})

afterAll(() => removeTemporaryHome(directory))

/** Creates an image with new content, so that no layer is already in the store. */
function newImage(bytes = 1000): MadeImage {
  const content = Buffer.alloc(bytes, `${number++} `)
  return makeImage({ layers: [{ files: [{ name: 'file', content }], compression: 'none' }] })
}

async function serve(image: MadeImage, answer?: Answer, blobs: Blob[] = partsOf(image)): Promise<FakeRegistry> {
  const registry = await fakeRegistry({ latest: image.manifest }, blobs, answer)
  open.push(registry)
  return registry
}

function pull({ host }: { host: string }, limits: Partial<ImageLimits> = {}): Promise<Image> {
  return imageStore({ home, limits, policy: loopbackPolicy() }).pullImage(parseImageReference(`${host}/app`, false))
}

test('gets a token when the registry asks for one, and sends it to no other host', async () => {
  const image = newImage()
  const elsewhere = await serve(image)
  const registry = await serve(image, (request, response, path) => {
    if (path.startsWith('/token')) return json(response, 200, { token: 'letmein' })
    if (request.headers.authorization !== 'Bearer letmein') {
      const challenge = `Bearer realm="http://${request.headers.host}/token",service="test",scope="repository:app:pull"`
      return json(response, 401, {}, { 'www-authenticate': challenge })
    }
    // Large registries redirect to other hosts for blobs.
    if (path.includes('/blobs/')) return json(response, 307, {}, { location: `http://${elsewhere.host}${path}` })
    return false
  })
  expect((await pull(registry)).digest).toBe(image.manifest.digest)
  const token = new URL(registry.requests.find(({ path }) => path.startsWith('/token'))!.path, 'http://x')
  expect([...token.searchParams]).toEqual([
    ['service', 'test'],
    ['scope', 'repository:app:pull'],
  ])
  expect(elsewhere.requests.length).toBe(2)
  expect(elsewhere.requests.map(({ headers }) => headers.authorization)).toEqual([undefined, undefined])
})

test('gets a new token when the old one has expired', async () => {
  const image = newImage()
  let valid = 0
  const registry = await serve(image, (request, response, path) => {
    if (path.startsWith('/token')) return json(response, 200, { access_token: `t${++valid}` })
    if (request.headers.authorization === `Bearer t${valid}` && !(path.includes(image.config.digest) && valid === 1))
      return false
    return json(response, 401, {}, { 'www-authenticate': `Bearer realm="http://${request.headers.host}/token"` })
  })
  expect((await pull(registry)).digest).toBe(image.manifest.digest)
  expect(valid).toBe(2)
})

test('uses credentials only from a file that other users cannot read', async () => {
  const image = newImage()
  const wanted = `Basic ${Buffer.from('me:secret').toString('base64')}`
  const registry = await serve(image, (request, response) => {
    if (request.headers.authorization === wanted) return false
    return json(response, 401, {}, { 'www-authenticate': 'Basic realm="x"' })
  })
  await expect(pull(registry)).rejects.toMatchObject({
    code: 'unauthorized',
    message: expect.stringContaining('registry.json'),
  })
  const file = `${home.path}/registry.json`
  writeFileSync(file, JSON.stringify({ [registry.host]: { username: 'me', password: 'secret' } }), { mode: 0o644 })
  chmodSync(file, 0o644)
  await expect(pull(registry)).rejects.toThrow('chmod 600')
  chmodSync(file, 0o600)
  expect((await pull(registry)).digest).toBe(image.manifest.digest)
})

test('gives up when the token is refused', async () => {
  const registry = await serve(newImage(), (request, response, path) => {
    if (path.startsWith('/token')) return json(response, 200, { token: 'useless' })
    return json(response, 401, {}, { 'www-authenticate': `Bearer realm="http://${request.headers.host}/token"` })
  })
  await expect(pull(registry)).rejects.toMatchObject({ code: 'unauthorized' })
})

test.each(['http://example.com/token', 'file:///etc/passwd', 'not a url', 'http://169.254.169.254/token'])(
  'refuses to get a token from %s',
  async (realm) => {
    const registry = await serve(newImage(), (_, response) =>
      json(response, 401, {}, { 'www-authenticate': `Bearer realm="${realm}"` }),
    )
    await expect(pull(registry)).rejects.toMatchObject({ code: 'unreachable' })
  },
)

test.each([
  'http://example.com/blob',
  'https://169.254.169.254/blob',
  'ftp://127.0.0.1/x',
  'https://[fe80::1]/x',
  '//[::ffff:169.254.169.254]/x',
])('does not follow a redirect to %s', async (location) => {
  const registry = await serve(
    newImage(),
    (_, response, path) => path.includes('/blobs/') && json(response, 302, {}, { location }),
  )
  await expect(pull(registry)).rejects.toMatchObject({ code: 'unreachable' })
})

test('gives the credentials for a registry to no server that another host names', async () => {
  const thief = await serve(newImage(), (request, response) =>
    json(response, 401, {}, { 'www-authenticate': `Bearer realm="http://${request.headers.host}/token"` }),
  )
  const registry = await serve(newImage(), (_, response, path) =>
    json(response, 307, {}, { location: `http://${thief.host}${path}` }),
  )
  const file = `${home.path}/registry.json`
  writeFileSync(file, JSON.stringify({ [registry.host]: { username: 'me', password: 'secret' } }), { mode: 0o600 })
  chmodSync(file, 0o600)
  await expect(pull(registry, { maxTries: 1 })).rejects.toMatchObject({ code: 'unreachable' })
  expect(thief.requests.map(({ path, headers }) => [path, headers.authorization])).toEqual([
    ['/v2/app/manifests/latest', undefined],
  ])
})

test('gives up on redirect loops', async () => {
  const registry = await serve(newImage(), (_, response, path) => json(response, 302, {}, { location: `${path}x` }))
  await expect(pull(registry)).rejects.toMatchObject({ code: 'unreachable' })
  expect(registry.requests.length).toBeLessThan(10)
})

test('resumes a download after a broken connection', async () => {
  const image = newImage(500_000)
  const layer = image.layers[0]!
  let cuts = 0
  const registry = await serve(image, (request, response, path) => {
    if (!path.endsWith(layer.digest) || cuts >= 2) return false
    cuts++
    const start = Number(/\d+/.exec(request.headers.range ?? '0')![0])
    response.writeHead(start > 0 ? 206 : 200, {
      'content-length': layer.content.length - start,
      'content-range': `bytes ${start}-/*`,
    })
    response.write(layer.content.subarray(start, start + 100_000), () => response.destroy())
    return true
  })
  expect((await pull(registry)).bytes).toBe(500_000)
  const ranges = registry.requests.filter(({ path }) => path.endsWith(layer.digest)).map(({ headers }) => headers.range)
  expect(ranges.length).toBe(3)
  expect(ranges[0]).toBeUndefined()
  expect(ranges.slice(1).every((range) => /^bytes=[1-9]\d*-$/.test(range!))).toBe(true)
})

test('resumes even if the registry ignores the range', async () => {
  const image = newImage(500_000)
  const layer = image.layers[0]!
  let asked = 0
  const registry = await serve(image, (_, response, path) => {
    if (!path.endsWith(layer.digest)) return false
    response.writeHead(200, { 'content-length': layer.content.length })
    if (asked++ > 0) response.end(layer.content)
    else response.write(layer.content.subarray(0, 150_000), () => response.destroy())
    return true
  })
  expect((await pull(registry)).bytes).toBe(500_000)
})

test('gives up after three broken connections or server errors', async () => {
  const image = newImage(500_000)
  const cutting = await serve(image, (_, response, path) => {
    if (!path.includes(image.layers[0]!.digest)) return false
    response.writeHead(200, { 'content-length': image.layers[0]!.content.length })
    response.write(Buffer.alloc(10), () => response.destroy())
    return true
  })
  await expect(pull(cutting)).rejects.toMatchObject({ code: 'unreachable' })
  const failing = await serve(image, (_, response) => json(response, 503, {}))
  await expect(pull(failing)).rejects.toMatchObject({ code: 'unreachable' })
  expect(failing.requests.length).toBe(3)
  await failing.close()
  open.splice(open.indexOf(failing), 1)
  await expect(pull(failing)).rejects.toMatchObject({ code: 'unreachable' })
})

test('gives up on a registry that stalls before or during an answer', async () => {
  const image = newImage(500_000)
  const layer = image.layers[0]!
  const silent = await serve(image, () => true)
  await expect(pull(silent, { stallSeconds: 0.3 })).rejects.toMatchObject({ code: 'unreachable' })
  const stopping = await serve(image, (_, response, path) => {
    if (!path.endsWith(layer.digest)) return false
    response.writeHead(200, { 'content-length': layer.content.length })
    response.write(layer.content.subarray(0, 10_000))
    return true
  })
  await expect(pull(stopping, { stallSeconds: 0.3 })).rejects.toMatchObject({ code: 'unreachable' })
})

test('gives up on a registry that is too slow', async () => {
  const image = newImage(500_000)
  const drops: NodeJS.Timeout[] = []
  const registry = await serve(image, (_, response, path) => {
    if (!path.endsWith(image.layers[0]!.digest)) return false
    response.writeHead(200, { 'content-length': image.layers[0]!.content.length })
    drops.push(setInterval(() => response.write(Buffer.alloc(1)), 5))
    return true
  })
  await expect(pull(registry, { maxSeconds: 0.5 })).rejects.toMatchObject({ code: 'unreachable' })
  for (const drop of drops) clearInterval(drop)
  await until(() => readdirSync(`${home.path}/image/layer`).every((name) => /^[0-9a-f]{64}$/.test(name)))
})

test('stops when it is aborted', async () => {
  const image = newImage()
  const silent = await serve(image, () => true)
  const calling = new AbortController()
  const pulling = imageStore({ home, policy: loopbackPolicy() }).pullImage(
    parseImageReference(`${silent.host}/app`, false),
    undefined,
    calling.signal,
  )
  setImmediate(() => calling.abort(new Error('called off')))
  await expect(pulling).rejects.toThrow()
})

test.each<[string, (image: MadeImage) => Blob[]]>([
  [
    'another content',
    ({ config, layers: [layer] }) => [config, { ...layer!, content: Buffer.alloc(layer!.content.length) }],
  ],
  [
    'too many bytes',
    ({ config, layers: [layer] }) => [
      config,
      { ...layer!, content: Buffer.concat([layer!.content, Buffer.alloc(10)]) },
    ],
  ],
  ['too few bytes', ({ config, layers: [layer] }) => [config, { ...layer!, content: layer!.content.subarray(0, 700) }]],
  [
    'another configuration',
    ({ config, layers }) => [{ ...config, content: Buffer.alloc(config.content.length, ' ') }, ...layers],
  ],
])('refuses a blob with %s', async (what, change) => {
  const image = newImage()
  const registry = await serve(image, undefined, change(image))
  // A short blob looks like a broken connection.
  const code = what === 'too few bytes' ? 'unreachable' : 'damaged'
  await expect(pull(registry)).rejects.toMatchObject({ code })
})

test('refuses manifests that do not match their digest or size', async () => {
  const image = newImage()
  const other = newImage()
  const index = makeIndex([
    { image, platform: { os: 'linux', architecture: process.arch === 'arm64' ? 'arm64' : 'amd64' } },
  ])
  const registry = await fakeRegistry({ latest: index }, partsOf(image), (_, response, path) => {
    if (!path.endsWith(image.manifest.digest)) return false
    response.end(other.manifest.content)
    return true
  })
  open.push(registry)
  await expect(pull(registry)).rejects.toMatchObject({ code: 'damaged' })
  const reference = parseImageReference(`${registry.host}/app@${image.manifest.digest}`, false)
  await expect(imageStore({ home, policy: loopbackPolicy() }).pullImage(reference)).rejects.toMatchObject({
    code: 'damaged',
  })
})

test.each<[string, unknown, string]>([
  ['invalid JSON', undefined, 'damaged'],
  ['a list', [], 'damaged'],
  ['an old schema', { schemaVersion: 1, fsLayers: [] }, 'not_supported'],
  ['no configuration', { schemaVersion: 2, layers: [] }, 'damaged'],
  [
    'an unsupported digest algorithm',
    { schemaVersion: 2, layers: [], config: { digest: `sha512:${'a'.repeat(128)}`, size: 2 } },
    'not_supported',
  ],
  ['a path as a digest', { schemaVersion: 2, layers: [], config: { digest: '../../x', size: 2 } }, 'not_supported'],
  [
    'a negative size',
    { schemaVersion: 2, layers: [], config: { digest: digestOf(Buffer.alloc(0)), size: -1 } },
    'damaged',
  ],
  [
    'an unknown layer',
    {
      schemaVersion: 2,
      layers: [{ mediaType: 'application/x', digest: digestOf(Buffer.alloc(0)), size: 0 }],
      config: { digest: digestOf(Buffer.alloc(0)), size: 0 },
    },
    'not_supported',
  ],
  [
    'a large configuration',
    { schemaVersion: 2, layers: [], config: { digest: digestOf(Buffer.alloc(0)), size: 2 ** 40 } },
    'too_large',
  ],
  ['an empty list of platforms', { schemaVersion: 2, manifests: [] }, 'not_supported'],
  ['too many layers', { schemaVersion: 2, layers: Array(129).fill({}), config: {} }, 'too_large'],
])('refuses a manifest with %s', async (_, content, code) => {
  const manifest =
    content === undefined
      ? { digest: digestOf(Buffer.from('{')), content: Buffer.from('{'), mediaType: '' }
      : jsonBlob(content, '')
  const registry = await fakeRegistry({ latest: manifest }, [])
  open.push(registry)
  await expect(pull(registry)).rejects.toMatchObject({ code })
})

test('refuses an endless manifest', async () => {
  const registry = await serve(newImage(), (_, response) => endless(response))
  await expect(pull(registry)).rejects.toMatchObject({ code: 'too_large' })
})

test('refuses an endless layer', async () => {
  const image = newImage()
  const registry = await serve(
    image,
    (_, response, path) => path.endsWith(image.layers[0]!.digest) && endless(response),
  )
  await expect(pull(registry)).rejects.toMatchObject({ code: 'damaged' })
})

test.each([
  ['gzip', gzipSync],
  ['zstd', zstdCompressSync],
] as const)('refuses a bomb in %s', async (_, compress) => {
  const image = newImage()
  // A tar with one large file of zeros.
  const tar = Buffer.concat([image.layers[0]!.tar.subarray(0, 512), Buffer.alloc(64 * 2 ** 20)])
  const content = compress(tar)
  const layer = { ...image.layers[0]!, content, digest: digestOf(content), diffId: digestOf(tar) }
  const manifest = jsonBlob(
    {
      schemaVersion: 2,
      config: { digest: image.config.digest, size: image.config.content.length },
      layers: [{ mediaType: 'application/vnd.oci.image.layer.v1.tar', digest: layer.digest, size: content.length }],
    },
    '',
  )
  const registry = await fakeRegistry({ latest: manifest }, [image.config, layer])
  open.push(registry)
  await expect(pull(registry, { maxUnguardedBytes: 2 ** 20 })).rejects.toMatchObject({ code: 'too_large' })
})

test('refuses a layer that cannot be decompressed', async () => {
  for (const magic of ['1f8b08', '28b52ffd']) {
    const image = newImage()
    const content = Buffer.concat([Buffer.from(magic, 'hex'), Buffer.alloc(1000, 'x')])
    const layer = { ...image.layers[0]!, content, digest: digestOf(content) }
    const manifest = jsonBlob(
      {
        schemaVersion: 2,
        config: { digest: image.config.digest, size: image.config.content.length },
        layers: [
          { mediaType: 'application/vnd.oci.image.layer.v1.tar+gzip', digest: layer.digest, size: content.length },
        ],
      },
      '',
    )
    const registry = await fakeRegistry({ latest: manifest }, [image.config, layer])
    open.push(registry)
    await expect(pull(registry)).rejects.toMatchObject({ code: 'damaged' })
  }
})

function json(response: ServerResponse, status: number, body: unknown, headers: Record<string, string> = {}): true {
  response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body))
  return true
}

function endless(response: ServerResponse): true {
  const chunk = Buffer.alloc(65_536, ' ')
  const more = () => {
    while (!response.destroyed && response.write(chunk));
  }
  response.on('drain', more)
  more()
  return true
}
