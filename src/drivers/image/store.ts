// Stores images. Each layer is unpacked once, into a directory named by the digest of its tar, and mounted by every
// machine and sandbox that needs it.
import type { ImageReference } from '../../model/image.ts'
import type { Home } from '../host/home.ts'
import { type OutboundPolicy, outboundPolicy } from '../network/guarded-http.ts'
import { archiveSource } from './archive.ts'
import type { ImageSource } from './blob.ts'
import { type ImageDisk, type ImageRecord, imageDisk } from './disk.ts'
import type { Image, ImageStore } from './driver.ts'
import { layoutSource } from './layout.ts'
import { defaultImageLimits, type ImageLimits } from './limits.ts'
import { planImage, resolveManifest } from './manifest.ts'
import { findComplete, type ImagePuller, imagePuller, pinnedDigest } from './pull.ts'
import { registrySource } from './registry.ts'
import { readCredentials } from './registry-auth.ts'

export interface ImageStoreOptions {
  home: Home
  limits?: Partial<ImageLimits>
  /** Where registries may be; by default only at public addresses. */
  policy?: OutboundPolicy
}

export function imageStore(options: ImageStoreOptions): ImageStore {
  const { home, policy = outboundPolicy() } = options
  const limits = { ...defaultImageLimits, ...options.limits }
  const disk = imageDisk(home)
  const puller = imagePuller({ disk, limits, openSource })

  async function openSource(reference: ImageReference, signal: AbortSignal): Promise<ImageSource> {
    if (reference.kind === 'layout') return layoutSource(reference, limits)
    if (reference.kind === 'tar') return archiveSource(reference.file, disk.scratch, limits, signal)
    const credentials = readCredentials(`${home.path}/registry.json`, reference.registry)
    return registrySource(reference, { credentials, policy, limits })
  }

  function imageOf({ digest, layers, config, bytes }: ImageRecord): Image {
    return { digest, layers: layers.map(disk.layerRoot), config, bytes }
  }

  return {
    async pullImage(reference, onProgress = () => undefined, signal = new AbortController().signal) {
      disk.prepare()
      return imageOf(await puller.pull(reference, onProgress, signal))
    },

    async describeImage(reference, signal) {
      const source = await openSource(reference, signal)
      try {
        const manifest = await resolveManifest(source, pinnedDigest(reference), limits, signal)
        const { layers } = await planImage(source, manifest, limits, signal)
        const packedBytes = layers.reduce((total, { size }) => total + size, 0)
        return { digest: manifest.digest, packedBytes, manifest: manifest.content }
      } finally {
        await source.close()
      }
    },

    async findImage(digest) {
      const record = findComplete(disk, digest)
      return record && imageOf(record)
    },

    async listImages() {
      const entries = disk
        .listRecords()
        .map(({ digest, reference, bytes, pulledAt }) => ({ digest, reference, bytes, pulledAt }))
      return entries.sort((a, b) => a.pulledAt - b.pulledAt || a.digest.localeCompare(b.digest))
    },

    collectImages: async (used) => collect(disk, puller, used),
  }
}

function collect(disk: ImageDisk, { isPulling, leftBehind }: ImagePuller, used: ReadonlySet<string>) {
  const unused = disk.listRecords().filter(({ digest }) => !used.has(digest) && !isPulling(digest))
  for (const { digest } of unused) disk.removeRecord(digest)
  const needed = new Set(disk.listRecords().flatMap(({ layers }) => layers))
  const released = new Set([...leftBehind, ...unused.flatMap(({ layers }) => layers)])
  // A young layer that no image named yet may belong to a pull of another process.
  const removed = disk
    .listLayers()
    .filter(({ diffId, isOld }) => !needed.has(diffId) && !isPulling(diffId) && (isOld || released.has(diffId)))
  const bytes = removed.reduce((total, { diffId }) => total + disk.readSize(diffId).bytes, 0)
  for (const { diffId } of removed) {
    disk.removeLayer(diffId)
    leftBehind.delete(diffId)
  }
  disk.sweep()
  return { images: unused.length, layers: removed.length, bytes }
}
