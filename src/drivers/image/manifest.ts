// Resolves a reference to the one image for this host's platform. It reads manifests in the formats of OCI and Docker.
import type { ImageConfig } from '../../model/image.ts'
import { type Descriptor, digestOf, type ImageSource, readAll, readDescriptor, verified } from './blob.ts'
import { readConfig, readDiffIds } from './config.ts'
import { ImageError } from './driver.ts'
import { isObject, parseObject } from './json.ts'
import type { ImageLimits } from './limits.ts'
import { choosePlatform, requirePlatform } from './platform.ts'

export interface ImageLayer extends Descriptor {
  /** The digest of the uncompressed tar. */
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

/** An index may point to another index; deeper nesting does not occur in practice. */
const maxIndexDepth = 3
const layerTypes =
  /^application\/vnd\.(?:oci\.image\.layer\.(?:nondistributable\.)?v1\.tar|docker\.image\.rootfs\.(?:foreign\.)?diff\.tar)(?:[.+](?:gzip|zstd))?$/

/** Follows indexes to the manifest for this host's platform. */
export async function resolveManifest(
  source: ImageSource,
  wanted: string | undefined,
  limits: ImageLimits,
  signal: AbortSignal,
): Promise<Manifest> {
  let expected: Partial<Descriptor> = wanted === undefined ? {} : { digest: wanted }
  for (let depth = 0; depth < maxIndexDepth; depth++) {
    const bytes = await source.readManifest(expected.digest, signal)
    const digest = checkManifest(bytes, expected, limits)
    const content = parseObject(bytes, 'manifest')
    if (!Array.isArray(content.manifests)) return { digest, content }
    expected = choosePlatform(content.manifests, limits)
  }
  throw new ImageError('damaged', 'The indexes of the image are nested too deeply')
}

/** Returns the digest of the manifest. */
function checkManifest(bytes: Buffer, { digest, size }: Partial<Descriptor>, limits: ImageLimits): string {
  const found = digestOf(bytes)
  if (bytes.length > limits.maxManifestBytes)
    throw new ImageError('too_large', 'The manifest of the image is too large')
  if (digest !== undefined && found !== digest)
    throw new ImageError('damaged', `The manifest ${digest} has the digest ${found}: push the image again`)
  if (size !== undefined && size !== bytes.length)
    throw new ImageError('damaged', `The manifest ${digest} has ${bytes.length} bytes instead of ${size}`)
  return found
}

/** Reads the image configuration and matches the layers of the manifest with it. */
export async function planImage(
  source: ImageSource,
  { digest, content }: Manifest,
  limits: ImageLimits,
  signal: AbortSignal,
): Promise<ImagePlan> {
  const packed = readLayers(content, limits)
  const descriptor = readDescriptor(content.config)
  if (descriptor.size > limits.maxManifestBytes)
    throw new ImageError('too_large', 'The configuration of the image is too large')
  const config = parseObject(await readAll(verified(source.openBlob(descriptor, signal), descriptor)), 'configuration')
  const diffIds = readDiffIds(config)
  requirePlatform(config)
  if (diffIds.length !== packed.length)
    throw new ImageError(
      'damaged',
      `The manifest of the image has ${packed.length} layers and its configuration ${diffIds.length}`,
    )
  return {
    digest,
    config: readConfig(config),
    layers: packed.map((layer, index) => ({ ...layer, diffId: diffIds[index]! })),
  }
}

function readLayers(content: Record<string, unknown>, limits: ImageLimits): Descriptor[] {
  if (content.schemaVersion !== 2 || !Array.isArray(content.layers))
    throw new ImageError(
      'not_supported',
      'The manifest of the image has an unsupported format: push the image in the OCI format',
    )
  if (content.layers.length > limits.maxLayers)
    throw new ImageError(
      'too_large',
      `The image has ${content.layers.length} layers, but at most ${limits.maxLayers} are supported`,
    )
  return content.layers.map(readLayer)
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
