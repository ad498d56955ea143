// A checkpoint is a copy of the layers that a box writes, in `checkpoint/<id>` beside them. It is complete when it has
// that name, because it is renamed last.
import { existsSync, mkdirSync, readdirSync, renameSync } from 'node:fs'
import type { BoxSpec } from '../../../model/sandbox/box.ts'
import type { Home } from '../../host/home.ts'
import { run } from '../../host/process.ts'
import { emptyTrash, moveToTrash } from '../../host/trash.ts'
import { type BoxPaths, boxPaths } from '../paths.ts'
import { type CopyHost, copyLayers, layersOf, removeCopyJobs } from './copy.ts'
import type { CheckpointDriver } from './driver.ts'
import { removeSnapshot, subvolume } from './subvolume.ts'
import { hideCheckpoint, prepareViews, showCheckpoints } from './view.ts'

export function checkpointDriver(host: CopyHost): CheckpointDriver {
  const { home } = host
  return {
    makeCheckpoint: async (spec, checkpoint) => {
      const paths = boxPaths(home, spec.id)
      const copy = { from: paths.directory, parent: paths.checkpoints, name: checkName(checkpoint) }
      const state = await copyLayers(host, spec, copy)
      if (state.is === 'done') await showCheckpoints(home, paths)
      return state
    },
    prepareRestore: async (spec, from, kept) => {
      const parent = boxPaths(home, spec.id).checkpoints
      if (existsSync(`${parent}/${checkName(kept)}`)) return { is: 'done' }
      const copy = { from: `${parent}/${checkName(from)}`, parent, name: preparedName(kept), isReadOnly: true }
      return copyLayers(host, spec, copy)
    },
    swapLayers: async (spec, kept) => swapLayers(home, boxPaths(home, spec.id), checkName(kept)),
    abandonCopy: (spec, checkpoint) => abandonCopy(host, spec, checkName(checkpoint)),
    measureLayers: (id) => measureLayers(boxPaths(home, id)),
    tidy: (spec) => removeCopyJobs(host, spec),
    removeCheckpoint: (id, checkpoint) => removeCheckpoint(home, boxPaths(home, id), checkName(checkpoint)),
  }
}

function checkName(checkpoint: string): string {
  if (!/^[a-z0-9][a-z0-9-]*$/.test(checkpoint)) throw new Error(`not a checkpoint: ${JSON.stringify(checkpoint)}`)
  return checkpoint
}

/** The tilde keeps the name from being that of a checkpoint. */
function preparedName(kept: string): string {
  return `restore~${kept}`
}

/** Swaps each layer by two renames. After a crash between any of them, calling this again completes the swap. */
function swapLayers(home: Home, paths: BoxPaths, kept: string): void {
  const parent = paths.checkpoints
  const prepared = `${parent}/${preparedName(kept)}`
  const keeping = `${parent}/.kept~${kept}`
  if (!existsSync(`${parent}/${kept}`)) {
    keepAndReplace(home, paths, prepared, keeping)
    renameSync(keeping, `${parent}/${kept}`)
  }
  prepareViews(paths)
  moveToTrash(home, prepared)
}

function keepAndReplace(home: Home, paths: BoxPaths, prepared: string, keeping: string): void {
  mkdirSync(keeping, { recursive: true, mode: 0o700 })
  for (const layer of readdirSync(prepared)) {
    const own = `${paths.directory}/${layer}`
    // After a crash between the two renames, the box may have been started and have made an empty layer.
    if (existsSync(own) && existsSync(`${keeping}/${layer}`)) moveToTrash(home, own)
    if (existsSync(own)) renameSync(own, `${keeping}/${layer}`)
    renameSync(`${prepared}/${layer}`, own)
  }
}

async function abandonCopy(host: CopyHost, spec: BoxSpec, checkpoint: string): Promise<void> {
  const { home } = host
  const paths = boxPaths(home, spec.id)
  await removeCopyJobs(host, spec)
  for (const name of [checkpoint, preparedName(checkpoint)]) moveToTrash(home, `${paths.checkpoints}/.new~${name}`)
  emptyTrash(home)
}

async function removeCheckpoint(home: Home, paths: BoxPaths, checkpoint: string): Promise<void> {
  const directory = `${paths.checkpoints}/${checkpoint}`
  hideCheckpoint(paths, checkpoint)
  if (existsSync(`${directory}/${subvolume}`)) await removeSnapshot(directory)
  else moveToTrash(home, directory)
  await showCheckpoints(home, paths)
  emptyTrash(home)
}

/** du follows no links and opens no files, so the box cannot redirect it. */
async function measureLayers(paths: BoxPaths): Promise<number> {
  const layers = layersOf(paths).map((layer) => `${paths.directory}/${layer}`)
  const { stdout } = await run('nice', ['du', '--summarize', '--block-size=1', '--', ...layers])
  return stdout.split('\n').reduce((sum, line) => sum + Number.parseInt(line || '0', 10), 0)
}
