import type { ImageSource } from './blob.ts'
import type { ImageDisk } from './disk.ts'
import { ImageError, type OnProgress } from './driver.ts'
import { requireFreeSpace } from './free-space.ts'
import type { ImageLimits } from './limits.ts'
import type { ImageLayer } from './manifest.ts'
import { sharedWork } from './share.ts'
import { unpackLayer, verifyLayer } from './unpack.ts'

export interface FetchOptions {
  source: ImageSource
  /** Identifies the repository. Only pulls from the same one share downloads, so none waits for a foreign registry. */
  repository: string
  layers: ImageLayer[]
  onProgress: OnProgress
  signal: AbortSignal
  /** Collects the downloads that use the source. They outlive this pull while another one waits for them. */
  running: Promise<unknown>[]
}

const maxConcurrentLayers = 3

/**
 * Downloads and unpacks the layers of images that are not present. A layer that is present may belong to somebody else,
 * whose digests an image can name without having the content. It is used only if its blob was received from the same
 * origin before and the origin lets this caller read it; else the blob is received again and verified.
 */
export function layerFetcher(disk: ImageDisk, limits: ImageLimits) {
  const share = sharedWork<void>()

  async function receive(
    { source, layers }: FetchOptions,
    layer: ImageLayer,
    signal: AbortSignal,
    report: (bytes: number) => void,
  ): Promise<void> {
    let bytes = 0
    const onBytes = (count: number) => {
      bytes += count
      report(bytes)
    }
    const { diffId } = layer
    const common = () => ({ packed: source.openBlob(layer, signal), descriptor: layer, diffId, onBytes, signal })
    if (disk.hasLayer(diffId)) await verifyLayer({ ...common(), directory: disk.layerTop, limits })
    else
      await disk.makeLayer(diffId, (directory) => {
        const remaining = { ...limits, ...remainingLimits(disk, limits, layers) }
        return unpackLayer({ ...common(), directory, limits: remaining })
      })
    await disk.addOrigin(diffId, source.origin, layer.digest)
  }

  /** Whether the layer is present and this caller has shown that it may have it. */
  async function isAuthorized(layer: ImageLayer, { source, signal }: FetchOptions): Promise<boolean> {
    const { diffId, digest } = layer
    if (!disk.hasLayer(diffId) || !disk.hasOrigin(diffId, source.origin, digest)) return false
    return source.mayReadBlob(layer, signal)
  }

  return async function fetchLayers(options: FetchOptions): Promise<void> {
    const { layers, repository, onProgress, signal, running } = options
    const missing: ImageLayer[] = []
    await forEachConcurrently(distinct(layers), signal, async (layer, either) => {
      if (!(await isAuthorized(layer, { ...options, signal: either }))) missing.push(layer)
    })
    const total = sum(missing.map(({ size }) => size))
    await requireFreeSpace(disk.layerTop, total + limits.reserveBytes)
    const done = new Map<string, number>()

    await forEachConcurrently(missing, signal, (layer, either) => {
      const work = (shared: AbortSignal, report: (bytes: number) => void) => {
        const result = receive(options, layer, shared, report)
        running.push(result)
        return result
      }
      const onBytes = (bytes: number) => {
        done.set(layer.diffId, bytes)
        onProgress(sum([...done.values()]), total)
      }
      return share(`${repository} ${layer.digest} ${layer.diffId}`, work, onBytes, either)
    })
    remainingLimits(disk, limits, layers)
  }
}

/** Runs the work for a few layers at a time. The first failure aborts the others and is thrown. */
async function forEachConcurrently(
  layers: ImageLayer[],
  signal: AbortSignal,
  work: (layer: ImageLayer, signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const failure = new AbortController()
  const either = AbortSignal.any([signal, failure.signal])
  const queue = [...layers]
  async function takeAll(): Promise<void> {
    for (let layer = queue.shift(); layer; layer = queue.shift()) await work(layer, either)
  }
  const workers = Array.from({ length: maxConcurrentLayers }, () => takeAll().catch((error) => failure.abort(error)))
  await Promise.all(workers)
  if (failure.signal.aborted) throw failure.signal.reason
}

/** Subtracts the layers that are present from the limits of the image; throws when they exceed it. */
function remainingLimits(
  disk: ImageDisk,
  limits: ImageLimits,
  layers: ImageLayer[],
): { maxBytes: number; maxFiles: number } {
  const present = distinct(layers).filter(({ diffId }) => disk.hasLayer(diffId))
  const sizes = present.map(({ diffId }) => disk.readSize(diffId))
  const maxBytes = limits.maxBytes - sum(sizes.map(({ bytes }) => bytes))
  const maxFiles = limits.maxFiles - sum(sizes.map(({ files }) => files))
  if (maxBytes >= 0 && maxFiles >= 0) return { maxBytes, maxFiles }
  throw new ImageError('too_large', `The image has more than ${limits.maxBytes} bytes or ${limits.maxFiles} files`)
}

function distinct(layers: ImageLayer[]): ImageLayer[] {
  return [...new Map(layers.map((layer) => [layer.diffId, layer])).values()]
}

function sum(numbers: number[]): number {
  return numbers.reduce((total, number) => total + number, 0)
}
