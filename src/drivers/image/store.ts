// Images of machines. Each layer is unpacked once, into a directory named by the digest of its tar, and mounted under
// every machine that needs it.
import { formatImageReference, type ImageReference } from '../../model/image.ts'
import type { Home } from '../host/home.ts'
import { archiveSource } from './archive.ts'
import { type ImageRecord, imageDisk } from './disk.ts'
import { type Image, ImageError, type ImageStore, type OnProgress } from './driver.ts'
import { layerFetcher } from './fetch.ts'
import { layoutSource } from './layout.ts'
import { defaultImageLimits, type ImageLimits } from './limits.ts'
import { type ImageSource, planImage, resolveManifest } from './manifest.ts'
import { readCredentials, registrySource } from './registry.ts'

export function imageStore(options: { home: Home; limits?: Partial<ImageLimits> }): ImageStore {
  const { home } = options
  const limits = { ...defaultImageLimits, ...options.limits }
  const disk = imageDisk(home)
  const fetchLayers = layerFetcher(disk, limits)
  const pulled = counted()
  /** Layers of pulls that failed; a repetition may still want them. */
  const leftBehind = new Set<string>()

  function imageOf({ digest, layers, config, bytes }: ImageRecord): Image {
    return { digest, layers: layers.map(disk.layerRoot), config, bytes }
  }

  function findWhole(digest: string): ImageRecord | undefined {
    const record = disk.findRecord(digest)
    return record?.layers.every(disk.hasLayer) ? record : undefined
  }

  async function openSource(reference: ImageReference, signal: AbortSignal): Promise<ImageSource> {
    if (reference.kind === 'layout') return layoutSource(reference, limits)
    if (reference.kind === 'tar') return archiveSource(reference.file, disk.scratch, limits, signal)
    return registrySource(reference, readCredentials(`${home.path}/registry.json`, reference.registry), limits)
  }

  async function pull(reference: ImageReference, onProgress: OnProgress, signal: AbortSignal): Promise<ImageRecord> {
    const wanted = reference.kind === 'registry' ? reference.digest : undefined
    const known = wanted === undefined ? undefined : findWhole(wanted)
    if (known) return known
    const source = await openSource(reference, signal)
    const running: Promise<unknown>[] = []
    try {
      const manifest = await resolveManifest(source, wanted, limits, signal)
      return await pulled.during([manifest.digest], async () => {
        const present = findWhole(manifest.digest)
        if (present) return noteReference(reference, present)
        const plan = await planImage(source, manifest, limits, signal)
        const layers = plan.layers.map(({ diffId }) => diffId)
        const fetching = { source, place: placeOf(reference), layers: plan.layers, onProgress, signal, running }
        return await pulled.during(layers, async () => {
          for (const diffId of layers) leftBehind.add(diffId)
          await fetchLayers(fetching)
          const bytes = layers.reduce((total, diffId) => total + disk.readSize(diffId).bytes, 0)
          const text = formatImageReference(reference)
          const record = {
            digest: plan.digest,
            reference: text,
            bytes,
            pulledAt: Date.now(),
            config: plan.config,
            layers,
          }
          await disk.writeRecord(record)
          for (const diffId of layers) leftBehind.delete(diffId)
          return record
        })
      })
    } finally {
      const closed = Promise.allSettled(running).then(() => source.close())
      // Another pull may wait for what this one began, and whoever called it off does not.
      if (!signal.aborted) await closed
    }
  }

  async function noteReference(reference: ImageReference, record: ImageRecord): Promise<ImageRecord> {
    const text = formatImageReference(reference)
    if (record.reference !== text) await disk.writeRecord({ ...record, reference: text, pulledAt: Date.now() })
    return record
  }

  return {
    async pullImage(reference, onProgress = () => undefined, signal = new AbortController().signal) {
      disk.prepare()
      const late = new AbortController()
      const reason = `The image did not arrive within ${limits.maxSeconds} s: try again later`
      const timer = setTimeout(() => late.abort(new ImageError('unreachable', reason)), limits.maxSeconds * 1000)
      try {
        return imageOf(await pull(reference, onProgress, AbortSignal.any([signal, late.signal])))
      } catch (error) {
        // What was under way may say in other words that it was stopped.
        throw late.signal.aborted ? late.signal.reason : error
      } finally {
        clearTimeout(timer)
      }
    },

    async describeImage(reference, signal) {
      const source = await openSource(reference, signal)
      try {
        const wanted = reference.kind === 'registry' ? reference.digest : undefined
        const manifest = await resolveManifest(source, wanted, limits, signal)
        const { layers } = await planImage(source, manifest, limits, signal)
        const packedBytes = layers.reduce((total, { size }) => total + size, 0)
        return { digest: manifest.digest, packedBytes, manifest: manifest.content }
      } finally {
        await source.close()
      }
    },

    async findImage(digest) {
      const record = findWhole(digest)
      return record && imageOf(record)
    },

    async listImages() {
      const entries = disk
        .listRecords()
        .map(({ digest, reference, bytes, pulledAt }) => ({ digest, reference, bytes, pulledAt }))
      return entries.sort((a, b) => a.pulledAt - b.pulledAt || a.digest.localeCompare(b.digest))
    },

    async collectImages(used) {
      const unused = disk.listRecords().filter(({ digest }) => !used.has(digest) && !pulled.has(digest))
      for (const { digest } of unused) disk.removeRecord(digest)
      const needed = new Set(disk.listRecords().flatMap(({ layers }) => layers))
      const freed = new Set([...leftBehind, ...unused.flatMap(({ layers }) => layers)])
      // What no image ever named may belong to a pull of another process, as long as it is young.
      const gone = disk
        .listLayers()
        .filter(({ diffId, isOld }) => !needed.has(diffId) && !pulled.has(diffId) && (isOld || freed.has(diffId)))
      const bytes = gone.reduce((total, { diffId }) => total + disk.readSize(diffId).bytes, 0)
      for (const { diffId } of gone) {
        disk.removeLayer(diffId)
        leftBehind.delete(diffId)
      }
      disk.sweep()
      return { images: unused.length, layers: gone.length, bytes }
    },
  }
}

function placeOf(reference: ImageReference): string {
  if (reference.kind === 'registry') return `${reference.registry}/${reference.repository}`
  return formatImageReference(reference)
}

/** What is in use, by however many at once. */
function counted() {
  const counts = new Map<string, number>()
  function change(keys: string[], by: number): void {
    for (const key of keys) {
      const count = (counts.get(key) ?? 0) + by
      if (count > 0) counts.set(key, count)
      else counts.delete(key)
    }
  }
  return {
    has: (key: string) => counts.has(key),
    async during<T>(keys: string[], work: () => Promise<T>): Promise<T> {
      change(keys, 1)
      try {
        return await work()
      } finally {
        change(keys, -1)
      }
    },
  }
}
