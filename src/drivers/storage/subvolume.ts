// On Btrfs only subvolumes can be limited, and only subvolumes can be snapshots. A copied home gets them where the drivers
// of clusters, sandboxes and machines would have made them.
import { chmodSync, existsSync, lstatSync, mkdirSync, readdirSync, renameSync, statSync, symlinkSync } from 'node:fs'
import { run } from '../host/process.ts'

/** The inode number of the root of every subvolume. */
const subvolumeInode = 256
const copyTimeoutSeconds = 24 * 3600

export function isSubvolume(directory: string): boolean {
  return statSync(directory, { throwIfNoEntry: false })?.ino === subvolumeInode
}

export async function createSubvolume(directory: string): Promise<void> {
  await run('btrfs', ['subvolume', 'create', directory])
}

/** Creates the directory that a unit is copied to, if it must be a subvolume. */
export async function prepareUnit(directory: string, unit: string): Promise<void> {
  if (/^clusters\/[a-z0-9]{16}$/.test(unit)) await createSubvolume(directory)
}

/** Turns the directories of a copied unit that may be limited into subvolumes. */
export async function makeLimitable(directory: string, unit: string): Promise<void> {
  if (!lstatSync(directory).isDirectory()) return
  if (/^machine\/[^/]+$/.test(unit)) await toSubvolume(`${directory}/layer`)
  if (!/^sandbox\/[^/]+$/.test(unit)) return
  await gatherLayers(directory)
  const checkpoints = `${directory}/checkpoint`
  if (!existsSync(checkpoints)) return
  for (const name of readdirSync(checkpoints)) await gatherLayers(`${checkpoints}/${name}`)
}

/** The layers of a sandbox, which on Btrfs are directories in one subvolume. */
const layers = ['upper', 'work', 'upper-usr', 'work-usr']
const layerSubvolume = 'layer'

async function gatherLayers(directory: string): Promise<void> {
  const target = `${directory}/${layerSubvolume}`
  // Also true for a home that was on Btrfs before: its subvolumes have become plain directories.
  if (existsSync(target)) return toSubvolume(target)
  if (!existsSync(`${directory}/upper`)) return
  const isSandbox = existsSync(`${directory}/work`)
  await createSubvolume(target)
  for (const layer of layers) {
    if (existsSync(`${directory}/${layer}`)) await moveByReflink(`${directory}/${layer}`, `${target}/${layer}`)
    else mkdirSync(`${target}/${layer}`)
    if (!existsSync(`${directory}/${layer}`) && isSandbox)
      symlinkSync(`${layerSubvolume}/${layer}`, `${directory}/${layer}`)
  }
  for (const layer of layers.filter((each) => !each.startsWith('upper'))) chmodSync(`${target}/${layer}`, 0o711)
}

async function toSubvolume(directory: string): Promise<void> {
  if (!existsSync(directory) || isSubvolume(directory)) return
  const fresh = `${directory}.new~`
  await createSubvolume(fresh)
  await run('cp', ['-aT', '--reflink=always', '--', directory, fresh], { timeoutSeconds: copyTimeoutSeconds })
  await run('rm', ['-rf', '--', directory], { timeoutSeconds: copyTimeoutSeconds })
  renameSync(fresh, directory)
}

/** A rename cannot cross the border of a subvolume. */
async function moveByReflink(from: string, to: string): Promise<void> {
  await run('cp', ['-aT', '--reflink=always', '--', from, to], { timeoutSeconds: copyTimeoutSeconds })
  await run('rm', ['-rf', '--', from], { timeoutSeconds: copyTimeoutSeconds })
}
