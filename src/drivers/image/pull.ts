import { formatImageReference, type ImageReference } from '../../model/image.ts'
import type { ImageSource } from './blob.ts'
import type { ImageDisk, ImageRecord } from './disk.ts'
import { ImageError, type OnProgress } from './driver.ts'
import { layerFetcher } from './fetch.ts'
import type { ImageLimits } from './limits.ts'
import { type ImagePlan, planImage, resolveManifest } from './manifest.ts'
import { usageCount } from './usage-count.ts'

export interface PullOptions {
  disk: ImageDisk
  limits: ImageLimits
  openSource(reference: ImageReference, signal: AbortSignal): Promise<ImageSource>
}

export interface ImagePuller {
  pull(reference: ImageReference, onProgress: OnProgress, signal: AbortSignal): Promise<ImageRecord>
  /** Whether an image or layer with this digest is being pulled. */
  isPulling(digest: string): boolean
  /** Layers of failed pulls, kept in case the pull is repeated. */
  leftBehind: Set<string>
}

export function imagePuller({ disk, limits, openSource }: PullOptions): ImagePuller {
  const fetchLayers = layerFetcher(disk, limits)
  const inUse = usageCount()
  const leftBehind = new Set<string>()

  async function pullFrom(
    source: ImageSource,
    reference: ImageReference,
    progress: { onProgress: OnProgress; signal: AbortSignal; running: Promise<unknown>[] },
  ): Promise<ImageRecord> {
    const { signal } = progress
    const manifest = await resolveManifest(source, pinnedDigest(reference), limits, signal)
    return inUse.during([manifest.digest], async () => {
      const plan = await planImage(source, manifest, limits, signal)
      const layers = plan.layers.map(({ diffId }) => diffId)
      return inUse.during(layers, async () => {
        for (const diffId of layers) leftBehind.add(diffId)
        await fetchLayers({ source, repository: repositoryOf(reference), layers: plan.layers, ...progress })
        for (const diffId of layers) leftBehind.delete(diffId)
        return writeRecord(reference, plan)
      })
    })
  }

  async function writeRecord(reference: ImageReference, { digest, config, layers }: ImagePlan): Promise<ImageRecord> {
    const text = formatImageReference(reference)
    const present = findComplete(disk, digest)
    if (present?.reference === text) return present
    const diffIds = layers.map(({ diffId }) => diffId)
    const bytes = diffIds.reduce((total, diffId) => total + disk.readSize(diffId).bytes, 0)
    const record = { digest, reference: text, bytes, pulledAt: Date.now(), config, layers: diffIds }
    await disk.writeRecord(record)
    return record
  }

  async function pull(reference: ImageReference, onProgress: OnProgress, signal: AbortSignal): Promise<ImageRecord> {
    const source = await openSource(reference, signal)
    const running: Promise<unknown>[] = []
    try {
      return await pullFrom(source, reference, { onProgress, signal, running })
    } finally {
      const closed = Promise.allSettled(running).then(() => source.close())
      // Another pull may share the downloads of this one; a caller that aborted does not wait for them.
      if (!signal.aborted) await closed
    }
  }

  return {
    leftBehind,
    isPulling: inUse.has,
    pull: (reference, onProgress, signal) =>
      withTimeout(limits.maxSeconds, signal, (either) => pull(reference, onProgress, either)),
  }
}

/** Returns the record of an image unless one of its layers is missing. */
export function findComplete(disk: ImageDisk, digest: string): ImageRecord | undefined {
  const record = disk.findRecord(digest)
  return record?.layers.every(disk.hasLayer) ? record : undefined
}

export function pinnedDigest(reference: ImageReference): string | undefined {
  return reference.kind === 'registry' ? reference.digest : undefined
}

function repositoryOf(reference: ImageReference): string {
  if (reference.kind === 'registry') return `${reference.registry}/${reference.repository}`
  return formatImageReference(reference)
}

async function withTimeout<T>(
  maxSeconds: number,
  signal: AbortSignal,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const timeout = new AbortController()
  const reason = `The image was not pulled within ${maxSeconds} s: try again later`
  const timer = setTimeout(() => timeout.abort(new ImageError('unreachable', reason)), maxSeconds * 1000)
  try {
    return await work(AbortSignal.any([signal, timeout.signal]))
  } catch (error) {
    // The aborted operation may report the abort in its own words.
    throw timeout.signal.aborted ? timeout.signal.reason : error
  } finally {
    clearTimeout(timer)
  }
}
