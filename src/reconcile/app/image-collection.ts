import { removeUnusedImages } from '../../store/account/quota.ts'
import { listUsedImages } from '../../store/app/machine.ts'
import { listSandboxImages } from '../../store/sandbox/sandbox.ts'
import type { World } from '../step.ts'

/** A new image may belong to a machine whose row does not name its digest yet. */
const freshImageMs = 3_600_000

/** Removes images that no machine and no sandbox uses. */
export async function collectImages({ db, images }: Pick<World, 'db' | 'images'>, now = Date.now()): Promise<void> {
  const fresh = (await images.listImages()).filter(({ pulledAt }) => now - pulledAt < freshImageMs)
  const named = [...(await listUsedImages(db)), ...(await listSandboxImages(db))]
  const used = new Set([...named, ...fresh.map(({ digest }) => digest)])
  await images.collectImages(used)
  await removeUnusedImages(db, freshImageMs)
}
