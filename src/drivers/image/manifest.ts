// From whatever names an image to the one image of this machine's kind: manifests and configurations as OCI and docker
// write them.
import { createHash } from 'node:crypto'
import { type ImageConfig, isDigest } from '../../model/image.ts'
import { ImageError } from './driver.ts'
import type { ImageLimits } from './limits.ts'
import { checked, type Descriptor } from './unpack.ts'

/** Where the parts of one image come from. What it hands out was not checked. */
export interface ImageSource {
  /** The one with the digest, or the one that the reference names. */
  readManifest(digest: string | undefined, signal: AbortSignal): Promise<Buffer>
  openBlob(descriptor: Descriptor, signal: AbortSignal): AsyncIterable<Buffer>
  close(): Promise<void>
}

export interface ImageLayer extends Descriptor {
  diffId: string
}

export interface ImagePlan {
  digest: string
  config: ImageConfig
  layers: ImageLayer[]
}

interface Manifest {
  digest: string
  content: Record<string, unknown>
}

const maxDepth = 3
const layerTypes =
  /^application\/vnd\.(?:oci\.image\.layer\.(?:nondistributable\.)?v1\.tar|docker\.image\.rootfs\.(?:foreign\.)?diff\.tar)(?:[.+](?:gzip|zstd))?$/
const architecture = { x64: 'amd64', arm64: 'arm64' }[process.arch as string] ?? process.arch

export function digestOf(content: Buffer): string {
  return `sha256:${createHash('sha256').update(content).digest('hex')}`
}

/** The digest of the manifest for this machine, and the manifest. */
export async function resolveManifest(
  source: ImageSource,
  wanted: string | undefined,
  limits: ImageLimits,
  signal: AbortSignal,
): Promise<Manifest> {
  let digest = wanted
  let size: number | undefined
  for (let depth = 0; depth < maxDepth; depth++) {
    const bytes = await source.readManifest(digest, signal)
    const found = digestOf(bytes)
    if (bytes.length > limits.maxManifestBytes)
      throw new ImageError('too_large', 'The manifest of the image is too large')
    if (digest !== undefined && found !== digest)
      throw new ImageError('damaged', `The manifest ${digest} has the digest ${found}: push the image again`)
    if (size !== undefined && size !== bytes.length)
      throw new ImageError('damaged', `The manifest ${digest} has ${bytes.length} bytes instead of ${size}`)
    const content = parseObject(bytes, 'manifest')
    if (!Array.isArray(content.manifests)) return { digest: found, content }
    const chosen = choosePlatform(content.manifests, limits)
    digest = chosen.digest
    size = chosen.size
  }
  throw new ImageError('damaged', 'The image is a list of lists of lists')
}

export async function planImage(
  source: ImageSource,
  { digest, content }: Manifest,
  limits: ImageLimits,
  signal: AbortSignal,
): Promise<ImagePlan> {
  if (content.schemaVersion !== 2 || !Array.isArray(content.layers))
    throw new ImageError(
      'not_supported',
      'The manifest of the image is of a kind that Berth does not know: push it in the OCI format',
    )
  if (content.layers.length > limits.maxLayers)
    throw new ImageError(
      'too_large',
      `The image has ${content.layers.length} layers, and at most ${limits.maxLayers} are possible`,
    )
  const packed = content.layers.map(readLayer)
  const descriptor = readDescriptor(content.config)
  if (descriptor.size > limits.maxManifestBytes)
    throw new ImageError('too_large', 'The configuration of the image is too large')
  const config = parseObject(await readAll(checked(source.openBlob(descriptor, signal), descriptor)), 'configuration')
  const diffIds = readDiffIds(config)
  refuseOtherPlatform(config)
  if (diffIds.length !== packed.length)
    throw new ImageError(
      'damaged',
      `The image has ${packed.length} layers and names ${diffIds.length} of them in its configuration`,
    )
  return {
    digest,
    config: readConfig(config),
    layers: packed.map((layer, index) => ({ ...layer, diffId: diffIds[index]! })),
  }
}

export async function readAll(source: AsyncIterable<Buffer>): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of source) chunks.push(chunk)
  return Buffer.concat(chunks)
}

export function parseObject(bytes: Buffer, what: string): Record<string, unknown> {
  let value: unknown
  try {
    value = JSON.parse(bytes.toString())
  } catch (error) {
    throw new ImageError('damaged', `The ${what} of the image is not JSON`, error)
  }
  if (!isObject(value)) throw new ImageError('damaged', `The ${what} of the image is not an object`)
  return value
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

export function readDescriptor(value: unknown): Descriptor {
  const { digest, size } = isObject(value) ? value : {}
  if (typeof digest !== 'string' || !Number.isSafeInteger(size) || (size as number) < 0)
    throw new ImageError('damaged', 'The manifest of the image has a part without digest or size')
  if (!isDigest(digest))
    throw new ImageError(
      'not_supported',
      `The image has a digest that is not of sha256: ${JSON.stringify(digest.slice(0, 100))}`,
    )
  return { digest, size: size as number }
}

function readLayer(value: unknown): Descriptor {
  const type = isObject(value) ? value.mediaType : undefined
  if (typeof type !== 'string' || !layerTypes.test(type))
    throw new ImageError(
      'not_supported',
      `The image has a layer of the type ${JSON.stringify(String(type).slice(0, 100))}, which is not a tar`,
    )
  return readDescriptor(value)
}

/** A plain entry for the architecture before one for a certain variant of it. */
export function choosePlatform(entries: unknown[], limits: ImageLimits): Descriptor {
  if (entries.length > limits.maxLayers * 8) throw new ImageError('too_large', 'The image is a list of too many images')
  const fitting = entries.filter(isObject).filter(({ platform }) => fits(platform))
  const chosen = fitting.find(({ platform }) => isObject(platform) && !platform.variant) ?? fitting[0]
  if (chosen) return readDescriptor(chosen)
  throw new ImageError(
    'not_supported',
    `The image does not exist for linux/${architecture}: build it for this platform as well`,
  )
}

function fits(platform: unknown): boolean {
  // A list of one may say nothing about it.
  if (!isObject(platform)) return true
  if (platform.os !== 'linux' || platform.architecture !== architecture) return false
  return ['', 'v8', 'v1', undefined].includes(platform.variant as string | undefined)
}

function refuseOtherPlatform({ os, architecture: found }: Record<string, unknown>): void {
  const isOurs = (os === undefined || os === '' || os === 'linux') && (!found || found === architecture)
  if (isOurs) return
  const theirs = JSON.stringify(`${os}/${found}`.slice(0, 100))
  throw new ImageError(
    'not_supported',
    `The image is for ${theirs} and this machine is linux/${architecture}: build it for this platform`,
  )
}

function readDiffIds({ rootfs }: Record<string, unknown>): string[] {
  const ids = isObject(rootfs) ? rootfs.diff_ids : undefined
  if (!Array.isArray(ids))
    throw new ImageError('not_supported', 'This is not an image that can be run: it has no root filesystem')
  if (ids.every((id) => typeof id === 'string' && isDigest(id))) return ids as string[]
  throw new ImageError('damaged', 'The configuration of the image has a layer that is not named by sha256')
}

export function readConfig(content: Record<string, unknown>): ImageConfig {
  const config = isObject(content.config) ? content.config : {}
  const signal = text(config.StopSignal)
  return {
    entrypoint: words(config.Entrypoint),
    cmd: words(config.Cmd),
    env: environment(words(config.Env)),
    user: text(config.User),
    workingDir: text(config.WorkingDir),
    ...(signal !== '' && { stopSignal: signal }),
    exposedPorts: isObject(config.ExposedPorts) ? Object.keys(config.ExposedPorts) : [],
    labels: isObject(config.Labels)
      ? Object.fromEntries(
          Object.entries(config.Labels).filter((entry): entry is [string, string] => typeof entry[1] === 'string'),
        )
      : {},
  }
}

function text(value: unknown): string {
  return typeof value === 'string' && !value.includes('\0') ? value : ''
}

function words(value: unknown): string[] {
  if (!Array.isArray(value)) return []
  if (value.every((word) => typeof word === 'string' && !word.includes('\0'))) return value as string[]
  throw new ImageError('damaged', 'The configuration of the image has a word that no program can be given')
}

function environment(entries: string[]): Record<string, string> {
  const pairs = entries.map((entry) => [entry.split('=', 1)[0]!, entry.slice(entry.indexOf('=') + 1 || entry.length)])
  return Object.fromEntries(pairs.filter(([name]) => name !== ''))
}
