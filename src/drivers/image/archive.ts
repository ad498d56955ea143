// A tar on this host: what docker or OCI tools saved, or a root filesystem as it is. Which of them is seen by what lies
// in it.
import { createHash } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { type FileHandle, open, rm } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { freshName } from '../host/fresh.ts'
import { ImageError } from './driver.ts'
import { asMissing, blobPath, findInIndex, openFile } from './layout.ts'
import type { ImageLimits } from './limits.ts'
import { digestOf, type ImageSource, isObject, parseObject, readAll } from './manifest.ts'
import { isCodecError, isPacked, openPlain, refuseFullDisk } from './unpack.ts'

interface Entry {
  start: number
  size: number
}

type Entries = Map<string, Entry>

const blockSize = 512
const windowSize = 256 * 1024
const maxNameBytes = 64 * 1024
/** More than any archive of an image has. A root filesystem is told apart from one long before. */
const maxEntries = 20_000
const layerType = 'application/vnd.oci.image.layer.v1.tar'

/** `scratch` is a directory for what has to be decompressed first. */
export async function archiveSource(
  file: string,
  scratch: string,
  limits: ImageLimits,
  signal: AbortSignal,
): Promise<ImageSource> {
  const head = Buffer.alloc(4)
  const handle = await open(file).catch((error) => {
    throw asMissing(error, file)
  })
  try {
    const { bytesRead } = await handle.read(head, 0, 4, 0).catch((error) => {
      throw asMissing(error, file)
    })
    if (bytesRead < 4)
      throw new ImageError('damaged', `${file} is empty: name a tar with an image or a root filesystem`)
  } finally {
    await handle.close()
  }
  if (!isPacked(head)) return plainSource(file, limits, signal, async () => undefined)
  const plain = freshName(scratch)
  const remove = () => rm(plain, { force: true })
  try {
    await decompress(file, plain, limits, signal)
    return await plainSource(plain, limits, signal, remove)
  } catch (error) {
    await remove()
    throw error
  }
}

async function decompress(file: string, to: string, limits: ImageLimits, signal: AbortSignal): Promise<void> {
  async function* bounded(source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    let bytes = 0
    let nextLook = 0
    for await (const chunk of source) {
      bytes += chunk.length
      if (bytes > limits.maxBytes) throw new ImageError('too_large', `${file} is larger than an image may be`)
      if (bytes >= nextLook) await refuseFullDisk(to.replace(/[^/]*$/, ''), limits.reserveBytes)
      if (bytes >= nextLook) nextLook = bytes + 64 * 2 ** 20
      yield chunk
    }
  }
  try {
    await pipeline(
      Readable.from(await openPlain(openFile(file))),
      bounded,
      createWriteStream(to, { flags: 'wx', mode: 0o600 }),
      { signal },
    )
  } catch (error) {
    throw isCodecError(error) ? new ImageError('damaged', `${file} cannot be decompressed`, error) : error
  }
}

async function plainSource(
  file: string,
  limits: ImageLimits,
  signal: AbortSignal,
  close: () => Promise<void>,
): Promise<ImageSource> {
  const handle = await open(file)
  try {
    const entries = await listEntries(handle)
    const image = (await readDockerArchive(file, entries, limits)) ?? readLayoutArchive(file, entries, limits)
    return { ...(image ?? (await readRootArchive(file, signal))), close }
  } finally {
    await handle.close()
  }
}

/** Of what could be part of an image archive. */
async function listEntries(handle: FileHandle): Promise<Entries> {
  const entries: Entries = new Map()
  const window = { buffer: Buffer.alloc(windowSize), start: 0, length: 0 }
  async function read(position: number, length: number): Promise<Buffer> {
    if (position < window.start || position + length > window.start + window.length) {
      window.start = position
      window.length = (await handle.read(window.buffer, 0, windowSize, position)).bytesRead
    }
    return window.buffer.subarray(position - window.start, Math.min(position - window.start + length, window.length))
  }
  let longName: string | undefined
  for (let position = 0, count = 0; count < maxEntries; count++) {
    const header = await read(position, blockSize)
    if (header.length < blockSize || header[0] === 0) break
    if (!isHeader(header)) {
      if (count === 0) throw new ImageError('damaged', 'The file is neither a tar nor compressed by gzip or zstd')
      break
    }
    const type = header.toString('latin1', 156, 157)
    const size = readSize(header)
    if (!Number.isSafeInteger(size)) break
    const start = position + blockSize
    const isName = type === 'x' || type === 'L'
    if (isName) {
      const text = (await read(start, Math.min(size, maxNameBytes))).toString()
      longName = type === 'L' ? text.replace(/\0.*$/s, '') : (/(?:^|\n)\d+ path=([^\n]*)\n/.exec(text)?.[1] ?? longName)
    } else if (type !== 'g' && type !== 'K') {
      if (type === '0' || type === '\0')
        entries.set((longName ?? nameOf(header)).replace(/^(?:\.?\/)+/, ''), { start, size })
      longName = undefined
    }
    position = start + Math.ceil(size / blockSize) * blockSize
  }
  return entries
}

/** By its sum, which also the oldest tars have. */
function isHeader(header: Buffer): boolean {
  const blank = Buffer.from(header).fill(' ', 148, 156)
  return blank.reduce((sum, byte) => sum + byte, 0) === Number.parseInt(field(header, 148, 8).trim(), 8)
}

function nameOf(header: Buffer): string {
  const [name, prefix] = [field(header, 0, 100), field(header, 345, 155)]
  // The other kind of magic has times where this one has the beginning of a name.
  return prefix !== '' && header.toString('latin1', 257, 263) === 'ustar\0' ? `${prefix}/${name}` : name
}

function field(header: Buffer, start: number, length: number): string {
  return header.toString('utf8', start, start + length).replace(/\0.*$/s, '')
}

function readSize(header: Buffer): number {
  if ((header[124]! & 0x80) === 0) return Number.parseInt(field(header, 124, 12).trim() || '0', 8)
  return Number(header.readBigUInt64BE(128))
}

function openEntry(file: string, { start, size }: Entry): AsyncIterable<Buffer> {
  return size === 0 ? Readable.from([]) : openFile(file, { start, end: start + size - 1 })
}

async function readEntry(file: string, entry: Entry, limits: ImageLimits): Promise<Buffer> {
  if (entry.size > limits.maxManifestBytes)
    throw new ImageError('too_large', `A part of ${file} that describes the image is too large`)
  return readAll(openEntry(file, entry))
}

type Parts = Omit<ImageSource, 'close'>

/** Every blob under the digest that the manifest gives it. */
function partsOf(
  file: string,
  manifest: (digest?: string) => Promise<Buffer>,
  find: (digest: string) => Entry | undefined,
): Parts {
  return {
    readManifest: manifest,
    openBlob({ digest }) {
      const entry = find(digest)
      if (!entry) throw new ImageError('damaged', `${file} lacks ${digest}: save the image again`)
      return openEntry(file, entry)
    },
  }
}

function readLayoutArchive(file: string, entries: Entries, limits: ImageLimits): Parts | undefined {
  const index = entries.get('index.json')
  if (!index || !entries.has('oci-layout')) return undefined
  const find = (digest: string) => entries.get(blobPath(digest))
  async function readManifest(digest?: string): Promise<Buffer> {
    const wanted = digest ?? findInIndex(await readEntry(file, index!, limits), undefined, limits)
    const entry = find(wanted)
    if (!entry) throw new ImageError('damaged', `${file} lacks ${wanted}: save the image again`)
    return readEntry(file, entry, limits)
  }
  return partsOf(file, readManifest, find)
}

/** Without a manifest of its own: one is made that depends on nothing but the content. */
async function readDockerArchive(file: string, entries: Entries, limits: ImageLimits): Promise<Parts | undefined> {
  const found = entries.get('manifest.json')
  if (!found) return undefined
  const list = readList(await readEntry(file, found, limits))
  if (!list) return undefined
  if (list.length !== 1)
    throw new ImageError('not_supported', `${file} has ${list.length} images in it: save one by itself`)
  const { Config, Layers } = list[0]!
  const configEntry = entries.get(Config)
  const layers = Layers.map((name) => ({ name, entry: entries.get(name) }))
  const lacking = layers.find(({ entry }) => !entry)
  if (!configEntry || lacking)
    throw new ImageError('damaged', `${file} lacks ${lacking?.name ?? Config}: save the image again`)
  const config = await readEntry(file, configEntry, limits)
  const { rootfs } = parseObject(config, 'configuration')
  const diffIds = isObject(rootfs) && Array.isArray(rootfs.diff_ids) ? rootfs.diff_ids.map(String) : []
  const digests = Layers.map((name, index) => digestByName(name) ?? diffIds[index] ?? '')
  const places = new Map<string, Entry>([
    [digestOf(config), configEntry],
    ...digests.map((digest, index) => [digest, layers[index]!.entry!] as const),
  ])
  const descriptors = digests.map((digest, index) => ({
    mediaType: layerType,
    digest,
    size: layers[index]!.entry!.size,
  }))
  const manifest = makeManifest(config, descriptors)
  return partsOf(
    file,
    async () => manifest,
    (digest) => places.get(digest),
  )
}

interface Saved {
  Config: string
  Layers: string[]
}

function readList(bytes: Buffer): Saved[] | undefined {
  try {
    const list: unknown = JSON.parse(bytes.toString())
    const isSaved = (value: unknown): value is Saved =>
      isObject(value) &&
      typeof value.Config === 'string' &&
      Array.isArray(value.Layers) &&
      value.Layers.every((name) => typeof name === 'string')
    return Array.isArray(list) && list.length > 0 && list.every(isSaved) ? list : undefined
  } catch {
    // A file of this name in a root filesystem may hold anything.
    return undefined
  }
}

/** Newer archives hold their layers as they were pushed, compressed too. */
function digestByName(name: string): string | undefined {
  const hex = /^blobs\/sha256\/([0-9a-f]{64})$/.exec(name)?.[1]
  return hex && `sha256:${hex}`
}

function makeManifest(config: Buffer, layers: { mediaType: string; digest: string; size: number }[]): Buffer {
  const mediaType = 'application/vnd.oci.image.config.v1+json'
  const described = { mediaType, digest: digestOf(config), size: config.length }
  return Buffer.from(JSON.stringify({ schemaVersion: 2, config: described, layers }))
}

async function readRootArchive(file: string, signal: AbortSignal): Promise<Parts> {
  const hash = createHash('sha256')
  let size = 0
  for await (const chunk of openFile(file)) {
    signal.throwIfAborted()
    hash.update(chunk)
    size += chunk.length
  }
  const digest = `sha256:${hash.digest('hex')}`
  const config = Buffer.from(JSON.stringify({ rootfs: { type: 'layers', diff_ids: [digest] } }))
  const manifest = makeManifest(config, [{ mediaType: layerType, digest, size }])
  return {
    readManifest: async () => manifest,
    openBlob: (wanted) => (wanted.digest === digest ? openFile(file) : Readable.from([config])),
  }
}
