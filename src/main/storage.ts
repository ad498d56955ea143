import { existsSync } from 'node:fs'
import { listControlProcesses } from '../drivers/host/control-process.ts'
import { openHome } from '../drivers/host/home.ts'
import { isTreeRunning } from '../drivers/s6/control.ts'
import { createPool, type PoolPlan, type PoolRequest, planPool } from '../drivers/storage/create.ts'
import { StorageError } from '../drivers/storage/driver.ts'
import type { MigrationProgress } from '../drivers/storage/migrate.ts'
import { realHome } from '../drivers/storage/mount.ts'
import { growPool, inspectStorage, type StorageReport } from '../drivers/storage/pool.ts'
import type { Config } from './config.ts'
import { stopAll } from './down.ts'

export function planStorage(config: Config, request: PoolRequest): Promise<PoolPlan> {
  return planPool(realHome(config.home), request)
}

/** Stops the platform if asked to, creates the pool and moves the home to it. Does not start the platform again. */
export async function createStorage(
  config: Config,
  plan: PoolPlan,
  stops: boolean,
  onProgress: (progress: MigrationProgress) => void,
): Promise<StorageReport> {
  // Creates a home that does not exist yet, with the modes that the pool takes over.
  const { path } = await openHome(config.home, { uidBase: config.uidBase })
  const stop = async () => {
    if (stops) await stopAll(config)
    if (await isRunning(config))
      throw new StorageError('the platform or its workloads are running; stop them with --stop or "berth down"')
  }
  await createPool(path, plan, { stop, onProgress })
  return inspectStorage(path)
}

async function isRunning(config: Config): Promise<boolean> {
  const home = await openHome(config.home, { uidBase: config.uidBase })
  return listControlProcesses(home).length > 0 || isTreeRunning({ treeDirectory: home.tree, logDirectory: home.log })
}

export async function showStorage(config: Config): Promise<StorageReport> {
  if (!existsSync(config.home)) throw new StorageError(`${config.home} does not exist; "berth up" creates it`)
  return inspectStorage(realHome(config.home))
}

export function growStorage(config: Config, sizeBytes: number | undefined): Promise<StorageReport> {
  return growPool(realHome(config.home), sizeBytes)
}
