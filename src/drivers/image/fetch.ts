import type { ImageDisk } from './disk.ts'
import { ImageError } from './driver.ts'
import type { ImageLimits } from './limits.ts'
import type { ImageLayer, ImageSource } from './manifest.ts'
import { sharing } from './share.ts'
import { refuseFullDisk, unpackLayer } from './unpack.ts'

export interface Fetching {
  source: ImageSource
  /** Where the source is. Only pulls from the same place share the work, so that none waits for a stranger's registry. */
  place: string
  layers: ImageLayer[]
  onProgress: (done: number, total: number) => void
  signal: AbortSignal
  /** Gets what uses the source, which may outlive this pull when another one waits for it. */
  running: Promise<unknown>[]
}

const layersAtOnce = 3

/** Makes present every layer of an image. */
export function layerFetcher(disk: ImageDisk, limits: ImageLimits) {
  const share = sharing<void>()

  function unpack(
    { source, layers }: Fetching,
    layer: ImageLayer,
    signal: AbortSignal,
    tell: (bytes: number) => void,
  ): Promise<void> {
    let bytes = 0
    const onBytes = (count: number) => {
      bytes += count
      tell(bytes)
    }
    return disk.makeLayer(layer.diffId, (directory) => {
      const packed = source.openBlob(layer, signal)
      const left = { ...limits, ...roomLeft(layers) }
      return unpackLayer({ directory, packed, descriptor: layer, diffId: layer.diffId, limits: left, onBytes, signal })
    })
  }

  function roomLeft(layers: ImageLayer[]): { maxBytes: number; maxFiles: number } {
    const present = distinct(layers).filter(({ diffId }) => disk.hasLayer(diffId))
    const sizes = present.map(({ diffId }) => disk.readSize(diffId))
    const maxBytes = limits.maxBytes - sum(sizes.map(({ bytes }) => bytes))
    const maxFiles = limits.maxFiles - sum(sizes.map(({ files }) => files))
    if (maxBytes >= 0 && maxFiles >= 0) return { maxBytes, maxFiles }
    throw new ImageError('too_large', `The image has more than ${limits.maxBytes} bytes or ${limits.maxFiles} files`)
  }

  return async function fetchLayers(fetching: Fetching): Promise<void> {
    const { layers, place, onProgress, signal, running } = fetching
    const missing = distinct(layers).filter(({ diffId }) => !disk.hasLayer(diffId))
    const total = sum(missing.map(({ size }) => size))
    await refuseFullDisk(disk.layerTop, total + limits.reserveBytes)
    const done = new Map<string, number>()
    // The first failure ends the others.
    const failing = new AbortController()
    const either = AbortSignal.any([signal, failing.signal])

    function fetchOne(layer: ImageLayer): Promise<void> {
      const work = (shared: AbortSignal, tell: (bytes: number) => void) => {
        const result = unpack(fetching, layer, shared, tell)
        running.push(result)
        return result
      }
      const listen = (bytes: number) => {
        done.set(layer.diffId, bytes)
        onProgress(sum([...done.values()]), total)
      }
      return share(`${place} ${layer.digest} ${layer.diffId}`, work, listen, either)
    }

    const left = [...missing]
    async function fetchNext(): Promise<void> {
      for (let layer = left.shift(); layer; layer = left.shift()) await fetchOne(layer)
    }
    const lanes = Array.from({ length: layersAtOnce }, () => fetchNext().catch((error) => failing.abort(error)))
    await Promise.all(lanes)
    if (failing.signal.aborted) throw failing.signal.reason
    roomLeft(layers)
  }
}

function distinct(layers: ImageLayer[]): ImageLayer[] {
  return [...new Map(layers.map((layer) => [layer.diffId, layer])).values()]
}

function sum(numbers: number[]): number {
  return numbers.reduce((total, number) => total + number, 0)
}
