// Determines what can be restored of a cluster that was restored itself and has no backup of its own yet.
import type { DescribedBase, DescribedEpoch, Repository } from '../../drivers/repository/driver.ts'
import { formatLsn, parseLsn } from '../../model/postgres/wal.ts'
import { parseTime } from '../../model/time.ts'
import type { AdoptedEpoch } from '../../store/postgres/adopt.ts'
import { latestCommit, type ReadEpoch } from './adopt-epoch.ts'

type Archives = Pick<Repository, 'archiveTail' | 'findBackup' | 'findForeignBackup' | 'planWal'>

/** Returns the reason if the epoch cannot be restored. */
export async function readBase(
  repository: Archives,
  clusterId: string,
  described: DescribedEpoch & { base: DescribedBase },
): Promise<ReadEpoch | string> {
  const { base, epoch, timeline, startLsn, startedAt } = described
  const problem = await findParentProblem(repository, base)
  if (problem) return problem
  const branch = base.pieces.at(-1)!.end
  const tail = await repository.archiveTail(clusterId, epoch, timeline, parseLsn(branch))
  const end = tail?.end ?? 0n
  if (end <= parseLsn(branch)) return `its own write-ahead log, which begins at ${branch}, is missing or damaged`
  const own = { clusterId, epoch, timeline, end: formatLsn(end) }
  const missing = await errorOf(repository.planWal([...base.pieces, own], parseLsn(base.backup.startLsn)))
  if (missing) return missing
  const adopted: AdoptedEpoch = {
    epoch,
    timeline,
    startLsn,
    startedAt,
    latestAt: latestCommit(tail?.newestCommit, parseTime(base.at)!),
    latestLsn: own.end,
    base,
  }
  return { backups: [], epoch: adopted, damage: tail?.damage }
}

async function findParentProblem(repository: Archives, { backup, pieces }: DescribedBase): Promise<string | undefined> {
  const { clusterId, label } = backup
  const dependency = `it depends on backup ${label} of cluster ${clusterId}`
  if (pieces.length === 0) return `${dependency}, but its description lacks the write-ahead log in between`
  try {
    if (!(await repository.findBackup(clusterId, label))) return `${dependency}, which is not in the repository`
    const damage = await repository.findForeignBackup(clusterId, label)
    return damage && `${dependency}, which is damaged: ${damage}`
  } catch (error) {
    return `${dependency}: ${(error as Error).message}`
  }
}

async function errorOf(work: Promise<unknown>): Promise<string | undefined> {
  try {
    await work
    return undefined
  } catch (error) {
    return (error as Error).message
  }
}
