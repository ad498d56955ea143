import { execFileSync, spawnSync } from 'node:child_process'
import {
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Home, openHome } from '../../../src/drivers/host/home.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { type Image, ImageError } from '../../../src/drivers/image/driver.ts'
import { imageStore } from '../../../src/drivers/image/store.ts'
import { parseImageReference } from '../../../src/model/image.ts'
import {
  assemble,
  type Blob,
  busyboxImage,
  descriptorOf,
  jsonBlob,
  layerOf,
  makeImage,
  makeIndex,
  makeLayer,
  makeTar,
  pack,
} from '../../support/image.ts'
import { loopbackPolicy } from '../../support/outbound.ts'
import { pushBlobs, pushImage, pushManifest, type Registry, startRegistry } from '../../support/registry.ts'
import { removeTemporaryHome, temporaryDirectory } from '../../support/temporary-home.ts'

const directory = temporaryDirectory()
let home: Home
let registry: Registry

beforeAll(async () => {
  home = await openHome(`${directory}/home`, { uidBase: 300_000, registry: `${directory}/homes` })
  registry = await startRegistry()
})

afterAll(async () => {
  await registry?.close()
  await removeTemporaryHome(directory)
})

function pull(text: string, store = imageStore({ home, policy: loopbackPolicy() })): Promise<Image> {
  return store.pullImage(parseImageReference(text, true))
}

function layerCount(): number {
  return readdirSync(`${home.path}/image/layer`).filter((name) => /^[0-9a-f]{64}$/.test(name)).length
}

function file(image: Image, path: string, layer = 0): string {
  return readFileSync(`${image.layers[layer]}/${path}`, 'utf8')
}

test('pulls an image from a registry, by tag and by digest', async () => {
  const { reference, digest } = await pushImage(registry, {
    repository: 'team/app',
    layers: [
      { files: [{ name: 'a', content: 'one', mode: 0o640, uid: 7, gid: 8, mtime: 1_600_000_000 }] },
      { files: [{ name: 'b', content: 'two' }], compression: 'zstd' },
      { files: [{ name: 'c', content: 'three' }], compression: 'none' },
    ],
    config: {
      Entrypoint: ['/bin/app'],
      Cmd: ['--serve'],
      Env: ['A=1=2', 'B='],
      User: '1000:1000',
      WorkingDir: '/srv',
      StopSignal: 'SIGINT',
      ExposedPorts: { '80/tcp': {} },
      Labels: { a: 'b' },
    },
  })
  const seen: [number, number][] = []
  const store = imageStore({ home, policy: loopbackPolicy() })
  const image = await store.pullImage(parseImageReference(reference, false), (...progress) => seen.push(progress))
  expect(image).toMatchObject({
    digest,
    bytes: 11,
    config: {
      entrypoint: ['/bin/app'],
      cmd: ['--serve'],
      env: { A: '1=2', B: '' },
      user: '1000:1000',
      workingDir: '/srv',
      stopSignal: 'SIGINT',
      exposedPorts: ['80/tcp'],
      labels: { a: 'b' },
    },
  })
  expect([file(image, 'a', 0), file(image, 'b', 1), file(image, 'c', 2)]).toEqual(['one', 'two', 'three'])
  const a = statSync(`${image.layers[0]}/a`)
  expect([a.mode & 0o7777, a.mtimeMs]).toEqual([0o640, 1_600_000_000_000])
  if (isRoot()) expect([a.uid, a.gid]).toEqual([7, 8])
  expect(seen.at(-1)![0]).toBe(seen.at(-1)![1])
  expect(await store.findImage(digest)).toEqual(image)
  expect(await store.findImage(`sha256:${'0'.repeat(64)}`)).toBeUndefined()
  const before = statSync(image.layers[0]!).ino
  expect(await pull(`${registry.host}/team/app@${digest}`)).toEqual(image)
  expect(await pull(reference)).toEqual(image)
  expect(statSync(image.layers[0]!).ino).toBe(before)
  expect(statSync(`${home.path}/image`).mode & 0o777).toBe(0o700)
})

test('chooses the image of this platform from an index', async () => {
  const [ours, theirs] = ['amd64', 'arm64'].map((architecture) =>
    makeImage({ layers: [{ files: [{ name: 'which', content: architecture }] }], architecture }),
  )
  const index = makeIndex([
    { image: ours!, platform: { os: 'windows', architecture: process.arch === 'arm64' ? 'arm64' : 'amd64' } },
    { image: theirs!, platform: { os: 'linux', architecture: 'arm64', variant: 'v8' } },
    { image: ours!, platform: { os: 'linux', architecture: 'amd64' } },
  ])
  for (const image of [ours!, theirs!]) {
    await pushBlobs(registry, 'multi', image)
    await pushManifest(registry, 'multi', image.manifest.digest, image.manifest)
  }
  await pushManifest(registry, 'multi', 'latest', index)
  const image = await pull(`${registry.host}/multi`)
  const expected = process.arch === 'arm64' ? 'arm64' : 'amd64'
  expect(file(image, 'which')).toBe(expected)
  expect(image.digest).toBe((expected === 'amd64' ? ours : theirs)!.manifest.digest)
  expect(await pull(`${registry.host}/multi@${index.digest}`)).toEqual(image)
  const other = makeImage({ layers: [], architecture: 's390x' })
  await pushBlobs(registry, 'other', other)
  await pushManifest(registry, 'other', 'latest', other.manifest)
  await expect(pull(`${registry.host}/other`)).rejects.toMatchObject({ code: 'not_supported' })
})

test('reads manifests in the format of Docker', async () => {
  const image = makeImage({ layers: [{ files: [{ name: 'docker' }] }] })
  const type = 'application/vnd.docker.distribution.manifest.v2+json'
  const manifest = jsonBlob(
    {
      schemaVersion: 2,
      mediaType: type,
      config: { ...descriptorOf(image.config), mediaType: 'application/vnd.docker.container.image.v1+json' },
      layers: image.layers.map((layer) => ({
        ...descriptorOf(layer),
        mediaType: 'application/vnd.docker.image.rootfs.diff.tar.gzip',
      })),
    },
    type,
  )
  await pushBlobs(registry, 'docker', image)
  await pushManifest(registry, 'docker', 'v2', manifest)
  expect((await pull(`${registry.host}/docker:v2`)).digest).toBe(manifest.digest)
})

test('reports what was not found', async () => {
  await expect(pull(`${registry.host}/nothing/here:v1`)).rejects.toMatchObject({
    code: 'not_found',
    message: expect.stringContaining('nothing/here:v1'),
  })
  await expect(pull(`tar:${directory}/nothing.tar`)).rejects.toMatchObject({ code: 'not_found' })
  await expect(pull(`oci:${directory}/nothing`)).rejects.toMatchObject({ code: 'not_found' })
})

test('unpacks a layer of two images once, and shares downloads of concurrent pulls', async () => {
  const shared = { files: [{ name: 'shared', content: 'x'.repeat(300_000) }] }
  const references = []
  for (const name of ['one', 'two'])
    references.push(
      (await pushImage(registry, { repository: `shared/${name}`, layers: [shared, { files: [{ name }] }] })).reference,
    )
  const before = layerCount()
  const store = imageStore({ home, policy: loopbackPolicy() })
  const images = await Promise.all([...references, ...references].map((reference) => pull(reference, store)))
  expect(layerCount()).toBe(before + 3)
  expect(new Set(images.map((image) => image.layers[0])).size).toBe(1)
})

test('aborts one pull while another continues with the same download', async () => {
  const { reference } = await pushImage(registry, {
    repository: 'left',
    layers: [{ files: [{ name: 'left', content: Buffer.alloc(5_000_000, 'ab') }], compression: 'none' }],
  })
  const store = imageStore({ home, policy: loopbackPolicy() })
  const leaving = new AbortController()
  const first = store.pullImage(
    parseImageReference(reference, false),
    () => leaving.abort(new Error('cancelled')),
    leaving.signal,
  )
  const second = pull(reference, store)
  await expect(first).rejects.toThrow('cancelled')
  expect(statSync(`${(await second).layers[0]}/left`).size).toBe(5_000_000)
})

test('writes whiteouts in the form of overlayfs', async () => {
  const { reference } = await pushImage(registry, {
    repository: 'marks',
    layers: [
      {
        files: [
          { name: 'etc/', type: 'directory' },
          { name: 'etc/gone', content: 'x' },
          { name: 'etc/kept', content: 'kept' },
          { name: 'closed/old', content: 'x' },
          { name: 'replaced/old', content: 'x' },
          { name: 'tree/a/b', content: 'x' },
        ],
      },
      {
        files: [
          { name: 'etc/.wh.gone' },
          { name: 'closed/.wh..wh..opq' },
          { name: 'closed/new', content: 'new' },
          { name: '.wh.replaced' },
          { name: 'replaced/', type: 'directory' },
          { name: 'replaced/new', content: 'new' },
          { name: '.wh.tree' },
          { name: '.wh..wh.plnk/x' },
          { name: '.wh..wh.aufs' },
        ],
      },
    ],
  })
  const { layers } = await pull(reference)
  expect(lstatSync(`${layers[1]}/etc/gone`).isCharacterDevice()).toBe(true)
  const merged = showMerged(layers)
  expect(merged).toEqual(['./closed/new', './etc/kept', './replaced/new'])
})

/** Lists the files that a machine with these layers would see. */
function showMerged(layers: string[]): string[] {
  const script = `mount -t overlay overlay -o "$1" "$2" && cd "$2" && find . -type f | sort`
  const mountPoint = `${directory}/merged`
  mkdirSync(mountPoint, { recursive: true })
  const options = `lowerdir=${layers.toReversed().join(':')}${isRoot() ? '' : ',userxattr'}`
  const flags = isRoot() ? ['-m'] : ['-rm']
  return execFileSync('unshare', [...flags, 'sh', '-ec', script, 'sh', options, mountPoint], { encoding: 'utf8' })
    .trim()
    .split('\n')
}

test('keeps links, permissions and attributes, and creates no devices', async () => {
  const capability = Buffer.from('0100000200040000000000000000000000000000', 'hex')
  const { reference } = await pushImage(registry, {
    repository: 'kinds',
    layers: [
      {
        files: [
          { name: './', type: 'directory', mode: 0o711 },
          { name: '/absolute', content: 'inside' },
          { name: 'a/file', content: 'x', mode: 0o4755 },
          { name: 'a/hard', type: 'link', link: 'a/file' },
          { name: 'soft', type: 'symlink', link: '/a/file' },
          { name: 'pipe', type: 'fifo' },
          { name: 'device', type: 'character' },
          { name: 'disk', type: 'block' },
          { name: 'capable', content: 'x', extended: { 'SCHILY.xattr.security.capability': capability } },
          {
            name: 'hostile',
            type: 'directory',
            extended: {
              'SCHILY.xattr.trusted.overlay.opaque': 'y',
              'SCHILY.xattr.user.overlay.redirect': '/etc',
              'SCHILY.xattr.user.fine': 'yes',
            },
          },
          { name: 'large-owner', uid: 4_000_000_000, gid: 70_000 },
          { name: 'group/', type: 'directory', mode: 0o2755, gid: 50 },
          { name: 'group/file' },
          { name: `${'long/'.repeat(50)}name`, content: 'long' },
          { name: 'twice', content: 'first' },
          { name: 'twice', content: 'second' },
          { name: 'was-directory/x/y', content: 'x' },
          { name: 'was-directory', content: 'file' },
        ],
      },
    ],
  })
  const { layers } = await pull(reference)
  const root = layers[0]!
  expect(statSync(root).mode & 0o7777).toBe(0o711)
  expect(readFileSync(`${root}/absolute`, 'utf8')).toBe('inside')
  expect(statSync(`${root}/a/file`)).toMatchObject({ nlink: 2, ino: statSync(`${root}/a/hard`).ino })
  expect(statSync(`${root}/a/file`).mode & 0o7777).toBe(0o4755)
  expect(readlinkSync(`${root}/soft`)).toBe('/a/file')
  expect(lstatSync(`${root}/pipe`).isFIFO()).toBe(true)
  expect(existsSync(`${root}/device`) || existsSync(`${root}/disk`)).toBe(false)
  expect(readFileSync(`${root}/${'long/'.repeat(50)}name`, 'utf8')).toBe('long')
  expect(readFileSync(`${root}/twice`, 'utf8')).toBe('second')
  expect(readFileSync(`${root}/was-directory`, 'utf8')).toBe('file')
  const hostile = attributes(`${root}/hostile`)
  expect(hostile).toContain('user.fine')
  expect(hostile.filter((name) => name.includes('overlay'))).toEqual([])
  if (!isRoot()) return
  expect(attributes(`${root}/capable`)).toContain('security.capability')
  expect(statSync(`${root}/large-owner`)).toMatchObject({ uid: 65_534, gid: 65_534 })
  expect(statSync(`${root}/group/file`)).toMatchObject({ uid: 0, gid: 0 })
})

function attributes(path: string): string[] {
  const number = process.arch === 'arm64' ? 12 : 195
  const script = `my $names = "\\0" x 4096; my $path = "$ARGV[0]\\0"; my $size = syscall(${number}, $path, $names, 4096); print substr $names, 0, $size`
  return execFileSync('perl', ['-e', script, path], { encoding: 'utf8' })
    .split('\0')
    .filter((name) => name !== '')
}

test('reads an OCI layout', async () => {
  const place = `${directory}/layout`
  const image = makeImage({ layers: [{ files: [{ name: 'from', content: 'layout' }] }] })
  writeLayout(place, [{ blob: image.manifest, name: 'v1' }], [image.manifest, image.config, ...image.layers])
  for (const reference of [`oci:${place}`, `oci:${place}:v1`])
    expect((await pull(reference)).digest).toBe(image.manifest.digest)
  await expect(pull(`oci:${place}:v2`)).rejects.toMatchObject({
    code: 'not_found',
    message: expect.stringContaining('v1'),
  })
})

function writeLayout(place: string, manifests: { blob: Blob; name: string }[], blobs: Blob[]): void {
  mkdirSync(`${place}/blobs/sha256`, { recursive: true })
  const entries = manifests.map(({ blob, name }) => ({
    ...descriptorOf(blob),
    annotations: { 'org.opencontainers.image.ref.name': name },
  }))
  writeFileSync(`${place}/index.json`, JSON.stringify({ schemaVersion: 2, manifests: entries }))
  writeFileSync(`${place}/oci-layout`, '{"imageLayoutVersion":"1.0.0"}')
  for (const { digest, content } of blobs) writeFileSync(`${place}/blobs/${digest.replace(':', '/')}`, content)
}

test('reads the tar of a root filesystem, compressed or not, as the same image', async () => {
  const tar = makeTar([
    { name: 'bin/', type: 'directory' },
    { name: 'bin/app', content: 'app', mode: 0o755 },
    { name: 'manifest.json', content: '{"not": "ours"}' },
  ])
  const digests = []
  for (const compression of ['none', 'gzip', 'zstd'] as const) {
    writeFileSync(`${directory}/root.${compression}`, pack(tar, compression))
    const image = await pull(`tar:${directory}/root.${compression}`)
    expect(file(image, 'bin/app')).toBe('app')
    expect(image.config).toMatchObject({ entrypoint: [], cmd: [], env: {} })
    digests.push(image.digest)
  }
  expect(new Set(digests).size).toBe(1)
  expect(readdirSync(`${home.path}/image/scratch`)).toEqual([])
})

test('reads the archives of Docker and OCI tools', async () => {
  const image = makeImage({
    layers: [{ files: [{ name: 'saved', content: 'yes' }], compression: 'none' }, { files: [{ name: 'too' }] }],
    config: { Cmd: ['/saved'] },
  })
  const [first, second] = image.layers
  const docker = makeTar([
    { name: 'first/layer.tar', content: first!.tar },
    { name: 'second/layer.tar', content: second!.tar },
    { name: 'config.json', content: image.config.content },
    {
      name: 'manifest.json',
      content: JSON.stringify([
        { Config: 'config.json', RepoTags: ['a:b'], Layers: ['first/layer.tar', 'second/layer.tar'] },
      ]),
    },
  ])
  const blobs = [image.manifest, image.config, ...image.layers].map((blob) => ({
    name: `blobs/${blob.digest.replace(':', '/')}`,
    content: blob.content,
  }))
  const oci = makeTar([
    ...blobs,
    { name: './oci-layout', content: '{}' },
    { name: './index.json', content: JSON.stringify({ schemaVersion: 2, manifests: [descriptorOf(image.manifest)] }) },
  ])
  const both = makeTar([
    ...blobs,
    {
      name: 'manifest.json',
      content: JSON.stringify([{ Config: blobs[1]!.name, Layers: blobs.slice(2).map(({ name }) => name) }]),
    },
  ])
  for (const [name, archive] of Object.entries({ docker, oci, both })) {
    writeFileSync(`${directory}/${name}.tar.gz`, pack(archive))
    const pulled = await pull(`tar:${directory}/${name}.tar.gz`)
    expect(file(pulled, 'saved')).toBe('yes')
    expect([pulled.layers.length, pulled.config.cmd]).toEqual([2, ['/saved']])
    if (name === 'oci') expect(pulled.digest).toBe(image.manifest.digest)
  }
  writeFileSync(
    `${directory}/lacking.tar`,
    makeTar([{ name: 'manifest.json', content: '[{"Config":"x","Layers":["y"]}]' }]),
  )
  await expect(pull(`tar:${directory}/lacking.tar`)).rejects.toMatchObject({ code: 'damaged' })
  for (const content of ['', 'not a tar at all'.repeat(100)]) {
    writeFileSync(`${directory}/none.tar`, content)
    await expect(pull(`tar:${directory}/none.tar`)).rejects.toMatchObject({ code: 'damaged' })
  }
})

test('removes exactly the layers that no image needs', async () => {
  const own = await openHome(`${directory}/collected`, { uidBase: 300_000, registry: `${directory}/homes` })
  const store = imageStore({ home: own, policy: loopbackPolicy() })
  const common = { files: [{ name: 'common', content: 'x'.repeat(1000) }] }
  const pulled = []
  for (const name of ['one', 'two'])
    pulled.push(
      await pull(
        (
          await pushImage(registry, {
            repository: `collect/${name}`,
            layers: [common, { files: [{ name, content: 'y' }] }],
          })
        ).reference,
        store,
      ),
    )
  const [one, two] = pulled as [Image, Image]
  expect(await store.collectImages(new Set([one.digest, two.digest]))).toEqual({ images: 0, layers: 0, bytes: 0 })
  expect((await store.listImages()).map(({ digest, bytes }) => ({ digest, bytes }))).toEqual(
    [one, two].map(({ digest }) => ({ digest, bytes: 1001 })),
  )
  expect(await store.collectImages(new Set([two.digest]))).toEqual({ images: 1, layers: 1, bytes: 1 })
  expect(await store.findImage(one.digest)).toBeUndefined()
  expect(await store.findImage(two.digest)).toEqual(two)
  expect(await store.collectImages(new Set())).toEqual({ images: 1, layers: 2, bytes: 1001 })
  expect(readdirSync(`${own.path}/image/layer`)).toEqual([])
})

test('does not remove what is being pulled', async () => {
  const { reference } = await pushImage(registry, {
    repository: 'spared',
    layers: [
      { files: [{ name: 'spared', content: Buffer.alloc(3_000_000, 'abc') }], compression: 'none' },
      { files: [{ name: 'small' }] },
    ],
  })
  const store = imageStore({ home, policy: loopbackPolicy() })
  const collected: Promise<unknown>[] = []
  const image = await store.pullImage(parseImageReference(reference, false), () =>
    collected.push(store.collectImages(new Set())),
  )
  await Promise.all(collected)
  expect(collected.length).toBeGreaterThan(0)
  expect(image.layers.every((layer) => existsSync(layer))).toBe(true)
})

test('never takes a partial layer for complete, whenever it is killed', async () => {
  const { reference } = await pushImage(registry, {
    repository: 'killed',
    layers: [
      { files: Array.from({ length: 400 }, (_, number) => ({ name: `f/${number}`, content: 'x'.repeat(20_000) })) },
    ],
  })
  const place = `${directory}/killed`
  const program = `
    import { openHome } from '${new URL('../../../src/drivers/host/home.ts', import.meta.url).pathname}'
    import { imageStore } from '${new URL('../../../src/drivers/image/store.ts', import.meta.url).pathname}'
    import { loopbackPolicy } from '${new URL('../../support/outbound.ts', import.meta.url).pathname}'
    import { parseImageReference } from '${new URL('../../../src/model/image.ts', import.meta.url).pathname}'
    const home = await openHome('${place}', { uidBase: 300000, registry: '${directory}/homes' })
    await imageStore({ home, policy: loopbackPolicy() }).pullImage(parseImageReference('${reference}', false), (done) => { if (done >= Number(process.argv[1])) process.kill(process.pid, 'SIGKILL') })`
  for (const killAt of [1, 20_000, 40_000]) {
    const { signal } = spawnSync(
      process.execPath,
      ['--disable-warning=ExperimentalWarning', '--input-type=module', '-e', program, String(killAt)],
      { cwd: '/' },
    )
    expect(signal).toBe('SIGKILL')
  }
  const own = await openHome(place, { uidBase: 300_000, registry: `${directory}/homes` })
  const image = await pull(reference, imageStore({ home: own, policy: loopbackPolicy() }))
  expect(readdirSync(`${image.layers[0]}/f`).length).toBe(400)
  expect(readFileSync(`${image.layers[0]}/f/399`, 'utf8').length).toBe(20_000)
})

test('unpacks an image of busybox that runs', async () => {
  const image = await pull((await pushImage(registry, { repository: 'busybox', ...busyboxImage() })).reference)
  const args = isRoot() ? [] : ['-r']
  expect(
    execFileSync(
      'unshare',
      [...args, 'chroot', image.layers[0]!, '/bin/sh', '-c', 'echo "$(id -u) $(ls /bin/busybox)"'],
      { encoding: 'utf8', env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' } },
    ),
  ).toBe('0 /bin/busybox\n')
})

test('refuses an image that is larger than allowed', async () => {
  const layers = [1, 2, 3].map((number) => makeLayer({ files: [{ name: `n${number}`, content: 'x'.repeat(1000) }] }))
  const image = assemble(layers)
  await pushBlobs(registry, 'large', image)
  await pushManifest(registry, 'large', 'latest', image.manifest)
  for (const limits of [
    { maxBytes: 2500 },
    { maxFiles: 2 },
    { maxLayers: 2 },
    { maxManifestBytes: 100 },
    { reserveBytes: 2 ** 60 },
  ]) {
    const failure = await pull(`${registry.host}/large`, imageStore({ home, limits, policy: loopbackPolicy() })).catch(
      (error) => error,
    )
    expect(failure).toBeInstanceOf(ImageError)
    expect(failure).toMatchObject({ code: 'too_large' })
  }
  expect((await pull(`${registry.host}/large`)).bytes).toBe(3000)
})

test('refuses a layer that does not match its configuration', async () => {
  const honest = makeImage({ layers: [{ files: [{ name: 'x' }] }] })
  const swapped = assemble([{ ...layerOf(makeTar([{ name: 'other' }])), diffId: honest.layers[0]!.diffId }])
  await pushBlobs(registry, 'swapped', swapped)
  await pushManifest(registry, 'swapped', 'latest', swapped.manifest)
  await expect(pull(`${registry.host}/swapped`)).rejects.toMatchObject({ code: 'damaged' })
})
