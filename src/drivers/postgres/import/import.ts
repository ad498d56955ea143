import { rm } from 'node:fs/promises'
import type { SourceExtension } from '../../../model/postgres/import.ts'
import { newPassword } from '../../../model/postgres/user.ts'
import { OutboundError, type OutboundPolicy } from '../../network/guarded-http.ts'
import { resolveTarget } from '../../network/outbound-target.ts'
import type { Supervisor } from '../../s6/driver.ts'
import { type ImportDriver, type ImportSpec, type ImportTask, type LiveState, SourceError } from './driver.ts'
import { inspectSource } from './facts.ts'
import { ensureForwarder } from './forwarder.ts'
import { inspectCopy, type JobParts, startDump, startRestore } from './job.ts'
import { importPaths, sourcePort } from './paths.ts'
import { cleanSource, ensurePublication, inspectSlot, readSequences } from './source.ts'
import {
  canSubscribe,
  countApplyErrors,
  dropCopy,
  findTargetProblem,
  hasCopy,
  isSubscribed,
  listSchemas,
  measureCopy,
  prepareCopy,
  replaceTarget,
  setSequences,
  subscribe,
  type TargetClient,
  unsubscribe,
} from './target.ts'

export interface ImportParts extends JobParts {
  supervisor: Supervisor
  postgres: TargetClient
  policy: OutboundPolicy
}

export function importDriver(parts: ImportParts): ImportDriver {
  const { home, jobs, postgres, policy } = parts
  return {
    resolve: (source) => resolveTarget(source, policy).catch(unreachable),
    ensureForwarder: (id, spec, task) => ensureForwarder(parts, id, spec, task),
    inspectSource: (id, spec, task) => inspectSource(home, id, spec, task),
    findTargetProblem: (id, database) => findTargetProblem(postgres, id, database),
    async startDump(id, spec, task) {
      if (task.live) await ensurePublication(home, id, task)
      await jobs.removeJob(importPaths(home, id).dumpJob)
      await startDump(parts, id, spec, task)
    },
    inspectDump: (id) => inspectCopy(jobs, importPaths(home, id).dumpJob),
    startRestore: (id, spec, task, extensions) => restore(parts, id, spec, task, extensions),
    inspectRestore: (id) => inspectCopy(jobs, importPaths(home, id).restoreJob, () => measureCopy(postgres, id)),
    canSubscribe: (id) => canSubscribe(postgres, id),
    subscribe: (id, spec, task) => subscribe(postgres, home, id, spec, task),
    inspectLive: (id, _spec, task) => inspectLive(parts, id, task),
    async copySequences(id, _spec, task) {
      if (await hasCopy(postgres, id)) await setSequences(postgres, id, await readSequences(home, id, task))
    },
    unsubscribe: (id) => unsubscribe(postgres, id),
    stopJobs: (id) => stopJobs(parts, id),
    cleanSource: (id, _spec, task) => cleanSource(home, id, task),
    replaceTarget: (id, database) => replaceTarget(postgres, id, database),
    dropCopy: (id) => dropCopy(postgres, id),
    remove: (id) => remove(parts, id),
  }
}

/** The reason is the same for all hosts, so that it does not tell what listens in the networks of this host. */
function unreachable(error: unknown): never {
  if (!(error instanceof OutboundError)) throw error
  throw new SourceError('the source cannot be reached', error.isTransient, error)
}

async function restore(
  parts: ImportParts,
  id: string,
  spec: ImportSpec,
  task: ImportTask,
  extensions: SourceExtension[],
): Promise<void> {
  const { home, jobs, postgres } = parts
  // A job of an interrupted attempt would write to the new database.
  await jobs.removeJob(importPaths(home, id).restoreJob)
  await rm(`${importPaths(home, id).work}/restoring`, { recursive: true, force: true })
  const password = newPassword()
  await prepareCopy(postgres, id, password, extensions)
  await startRestore(parts, id, spec, task, { password, schemas: await listSchemas(postgres, id) })
}

async function inspectLive({ home, postgres }: ImportParts, id: string, task: ImportTask): Promise<LiveState> {
  if (!(await isSubscribed(postgres, id))) return { is: 'lost', reason: 'the subscription of the copy is gone' }
  const seen = await inspectSlot(home, id, task)
  return seen.is === 'running' ? { ...seen, errors: await countApplyErrors(postgres, id) } : seen
}

async function stopJobs({ home, jobs }: ImportParts, id: string): Promise<void> {
  const { dumpJob, restoreJob } = importPaths(home, id)
  await jobs.removeJob(dumpJob)
  await jobs.removeJob(restoreJob)
}

async function remove(parts: ImportParts, id: string): Promise<void> {
  const { home, supervisor } = parts
  const paths = importPaths(home, id)
  await stopJobs(parts, id)
  await supervisor.removeService(paths.forwarder)
  // Nothing writes to it any more. It cannot be moved to the trash out of a subvolume.
  await rm(paths.directory, { recursive: true, force: true })
  // The directory stays, because the box of a server that subscribes cannot start without it.
  for (const file of [`.s.PGSQL.${sourcePort}`, 'password']) await rm(`${paths.sockets}/${file}`, { force: true })
}
