// How images lie in a home: `image/layer/<digest of its tar>` with the unpacked `root` and its size, and
// `image/manifest/<digest>.json` for each image all of whose layers were there. Both are made under fresh names, so
// that whatever has its name is whole.
import { existsSync, readdirSync, readFileSync, renameSync, statSync } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import { basename } from 'node:path'
import { type ImageConfig, isDigest } from '../../model/image.ts'
import { readTextIfPresent } from '../host/file.ts'
import { ensureDirectory, freshName } from '../host/fresh.ts'
import type { Home } from '../host/home.ts'
import { run } from '../host/process.ts'
import { discard, sweepTrash } from '../host/trash.ts'
import type { LayerSize } from './unpack.ts'

export interface ImageRecord {
  digest: string
  reference: string
  /** Unpacked, of all layers. */
  bytes: number
  /** Milliseconds. */
  pulledAt: number
  config: ImageConfig
  /** Digests of their tars, lowest first. */
  layers: string[]
}

export type ImageDisk = ReturnType<typeof imageDisk>

// A pull may take long, and another process may be at it.
const abandonedMs = 24 * 3_600_000
const wholeName = /^[0-9a-f]{64}(?:\.json)?$/
// Much to write may be waiting already.
const syncSeconds = 600

export function imageDisk(home: Home) {
  const top = `${home.path}/image`
  const [layerTop, recordTop, scratch] = [`${top}/layer`, `${top}/manifest`, `${top}/scratch`]

  function layerPlace(diffId: string): string {
    return `${layerTop}/${diffId.replace('sha256:', '')}`
  }

  function layerRoot(diffId: string): string {
    return `${layerPlace(diffId)}/root`
  }

  function hasLayer(diffId: string): boolean {
    return existsSync(layerRoot(diffId))
  }

  function recordFile(digest: string): string {
    return `${recordTop}/${digest.replace('sha256:', '')}.json`
  }

  function findRecord(digest: string): ImageRecord | undefined {
    const text = isDigest(digest) ? readTextIfPresent(recordFile(digest)) : undefined
    return text === undefined ? undefined : (JSON.parse(text) as ImageRecord)
  }

  function isOld(path: string): boolean {
    const found = statSync(path, { throwIfNoEntry: false })
    // The time of the last change of the entry itself; that of its modification may come from the image.
    return found !== undefined && Date.now() - found.ctimeMs >= abandonedMs
  }

  function prepare(): void {
    // Programs with the rights of root lie in it, as the images have them: nobody else may come near.
    for (const directory of [top, layerTop, recordTop, scratch]) ensureDirectory(directory, { mode: 0o700 })
  }

  return {
    layerTop,
    scratch,
    layerRoot,
    hasLayer,
    prepare,
    findRecord,

    readSize(diffId: string): LayerSize {
      return JSON.parse(readFileSync(`${layerPlace(diffId)}/size.json`, 'utf8')) as LayerSize
    },

    /** Makes a layer by filling the directory that it gives. */
    async makeLayer(diffId: string, fill: (root: string) => Promise<LayerSize>): Promise<void> {
      const fresh = freshName(layerTop)
      try {
        await mkdir(`${fresh}/root`, { recursive: true })
        ensureDirectory(`${fresh}/root`, { mode: 0o755 })
        const size = await fill(`${fresh}/root`)
        await writeFile(`${fresh}/size.json`, JSON.stringify(size))
        // What has its name is whole also after the power went away.
        await run('sync', ['-f', fresh], { timeoutSeconds: syncSeconds })
        renameSync(fresh, layerPlace(diffId))
      } catch (error) {
        // Not deleted here: a tree may be deeper than paths can be long.
        discard(home, fresh)
        sweepTrash(home)
        if (!isTaken(error)) throw error
      }
    },

    async writeRecord(record: ImageRecord): Promise<void> {
      const fresh = freshName(recordTop)
      await writeFile(fresh, JSON.stringify(record), { flag: 'wx', mode: 0o600, flush: true })
      renameSync(fresh, recordFile(record.digest))
    },

    listRecords(): ImageRecord[] {
      prepare()
      const names = readdirSync(recordTop).filter((name) => wholeName.test(name))
      return names.flatMap((name) => findRecord(`sha256:${basename(name, '.json')}`) ?? [])
    },

    removeRecord(digest: string): void {
      discard(home, recordFile(digest))
    },

    listLayers(): { diffId: string; isOld: boolean }[] {
      const names = readdirSync(layerTop).filter((name) => wholeName.test(name))
      return names.map((name) => ({ diffId: `sha256:${name}`, isOld: isOld(`${layerTop}/${name}`) }))
    },

    removeLayer(diffId: string): void {
      discard(home, layerPlace(diffId))
    },

    /** What killed processes left under fresh names, and what was removed. */
    sweep(): void {
      for (const directory of [layerTop, recordTop, scratch]) {
        const fresh = readdirSync(directory).filter((name) => !wholeName.test(name))
        for (const path of fresh.map((name) => `${directory}/${name}`)) if (isOld(path)) discard(home, path)
      }
      sweepTrash(home)
    },
  }
}

/** Another process made it first. */
function isTaken(error: unknown): boolean {
  return ['EEXIST', 'ENOTEMPTY'].includes((error as NodeJS.ErrnoException).code ?? '')
}
