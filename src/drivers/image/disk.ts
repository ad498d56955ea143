// The files of images in a home: `image/layer/<digest of the tar>` holds the unpacked `root` of a layer, its size and whom
// it was received from, and `image/manifest/<digest>.json` describes an image whose layers are all present. Layers and
// manifests are made under temporary names and renamed, so an entry with its final name is complete.
import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync, renameSync, statSync } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import { basename, dirname } from 'node:path'
import { type ImageConfig, isDigest } from '../../model/image.ts'
import { ensureDirectory, temporaryPath } from '../host/atomic-file.ts'
import { readTextIfPresent } from '../host/file.ts'
import type { Home } from '../host/home.ts'
import { run } from '../host/process.ts'
import { emptyTrash, moveToTrash } from '../host/trash.ts'
import type { ImageEntry } from './driver.ts'
import type { LayerSize } from './unpack.ts'

export interface ImageRecord extends ImageEntry {
  config: ImageConfig
  /** The digests of the layers' tars, lowest first. */
  layers: string[]
}

export type ImageDisk = ReturnType<typeof imageDisk>

// Younger entries may belong to a running pull of another process.
const abandonedAfterMs = 24 * 3_600_000
const finalName = /^[0-9a-f]{64}(?:\.json)?$/
// The kernel may have many other dirty pages to write first.
const syncTimeoutSeconds = 600

export function imageDisk(home: Home) {
  const top = `${home.path}/image`
  const [layerTop, recordTop, scratch] = [`${top}/layer`, `${top}/manifest`, `${top}/scratch`]

  function layerDirectory(diffId: string): string {
    return `${layerTop}/${diffId.replace('sha256:', '')}`
  }

  function layerRoot(diffId: string): string {
    return `${layerDirectory(diffId)}/root`
  }

  function originFile(diffId: string, origin: string, digest: string): string {
    // One file for each origin, so that concurrent pulls do not overwrite each other's.
    const name = createHash('sha256').update(`${origin} ${digest}`).digest('hex')
    return `${layerDirectory(diffId)}/origin/${name}`
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
    // ctime, because mtime may come from the image.
    return found !== undefined && Date.now() - found.ctimeMs >= abandonedAfterMs
  }

  function prepare(): void {
    // Images contain setuid programs, so other users of the host must not reach them.
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
      return JSON.parse(readFileSync(`${layerDirectory(diffId)}/size.json`, 'utf8')) as LayerSize
    },

    /** Whether this blob was once received in full from the origin and is the layer, compressed or not. */
    hasOrigin(diffId: string, origin: string, digest: string): boolean {
      return existsSync(originFile(diffId, origin, digest))
    },

    /** Notes that the blob was received in full from the origin and is the layer. */
    async addOrigin(diffId: string, origin: string, digest: string): Promise<void> {
      const file = originFile(diffId, origin, digest)
      ensureDirectory(dirname(file), { mode: 0o700 })
      await writeFile(file, `${origin} ${digest}\n`, { mode: 0o600 })
    },

    /** Creates a layer; `fill` unpacks it into the directory. */
    async makeLayer(diffId: string, fill: (root: string) => Promise<LayerSize>): Promise<void> {
      const fresh = temporaryPath(layerTop)
      try {
        await mkdir(`${fresh}/root`, { recursive: true })
        ensureDirectory(`${fresh}/root`, { mode: 0o755 })
        const size = await fill(`${fresh}/root`)
        await writeFile(`${fresh}/size.json`, JSON.stringify(size))
        // The layer must be complete on disk before it gets its final name, also after a power failure.
        await run('sync', ['-f', fresh], { timeoutSeconds: syncTimeoutSeconds })
        renameSync(fresh, layerDirectory(diffId))
      } catch (error) {
        // Moved to the trash instead of deleted: the tree may be deeper than the longest path.
        moveToTrash(home, fresh)
        emptyTrash(home)
        if (!isTaken(error)) throw error
      }
    },

    async writeRecord(record: ImageRecord): Promise<void> {
      const fresh = temporaryPath(recordTop)
      await writeFile(fresh, JSON.stringify(record), { flag: 'wx', mode: 0o600, flush: true })
      renameSync(fresh, recordFile(record.digest))
    },

    listRecords(): ImageRecord[] {
      prepare()
      const names = readdirSync(recordTop).filter((name) => finalName.test(name))
      return names.flatMap((name) => findRecord(`sha256:${basename(name, '.json')}`) ?? [])
    },

    removeRecord(digest: string): void {
      moveToTrash(home, recordFile(digest))
    },

    listLayers(): { diffId: string; isOld: boolean }[] {
      const names = readdirSync(layerTop).filter((name) => finalName.test(name))
      return names.map((name) => ({ diffId: `sha256:${name}`, isOld: isOld(`${layerTop}/${name}`) }))
    },

    removeLayer(diffId: string): void {
      moveToTrash(home, layerDirectory(diffId))
    },

    /** Removes what killed processes left under temporary names, and empties the trash. */
    sweep(): void {
      for (const directory of [layerTop, recordTop, scratch]) {
        const fresh = readdirSync(directory).filter((name) => !finalName.test(name))
        for (const path of fresh.map((name) => `${directory}/${name}`)) if (isOld(path)) moveToTrash(home, path)
      }
      emptyTrash(home)
    },
  }
}

/** Another process has created the same layer first. */
function isTaken(error: unknown): boolean {
  return ['EEXIST', 'ENOTEMPTY'].includes((error as NodeJS.ErrnoException).code ?? '')
}
