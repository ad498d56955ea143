// Blue-green deployments: starts a new machine beside each existing one, and replaces all of them when the new ones work.
//
// Machines in between carry a mark. One that is marked when a deployment starts was left by a deployment that was
// interrupted: a new machine that never took over, or an old one that was not destroyed yet. Both can be destroyed,
// because old machines are marked only when no new one is any more.
import { request } from '../client.ts'
import { UsageError } from '../errors.ts'
import type { GroupConfig } from './deploy-config.ts'
import { createMachine, destroyMachine } from './machine-copy.ts'
import { isStoppedOnPurpose, type Machine, machinePath, replacementMark, waitForState } from './machine-find.ts'
import { type MachineChange, type Rollout, underLeases, waitUntilUp, withLastLogLines } from './machine-roll.ts'

/** A volume can be mounted by one machine only, and other machines refer to the ids of those they stand by for. */
export function requireReplaceable(configs: GroupConfig[]): void {
  if (configs.some(({ mounts, standbys }) => mounts?.length || standbys?.length)) {
    throw new UsageError('bluegreen cannot replace machines with volumes or standbys; use rolling, canary or immediate')
  }
}

interface Replacement {
  old: Machine
  made: Machine
}

/** Returns the ids of the new machines. When one of them does not work, all of them are destroyed. */
export async function replaceMachines(rollout: Rollout, changes: MachineChange[]): Promise<string[]> {
  const oldIds = changes.map(({ machine }) => machine.id)
  return underLeases(rollout, oldIds, async (nonces) => {
    const pairs: Replacement[] = []
    try {
      for (const change of changes) pairs.push(await startBeside(rollout, change))
      const waits = pairs.map((pair) => waitForNew(rollout, pair))
      const failed = (await Promise.allSettled(waits)).find((result) => result.status === 'rejected')
      if (failed) throw failed.reason
      for (const { old, made } of pairs) {
        if (!old.cordoned) await request(rollout.session, 'POST', `${machinePath(rollout.app, made.id)}/uncordon`, {})
      }
    } catch (error) {
      rollout.progress.show('Destroying the new machines; the old ones stay')
      await Promise.allSettled(pairs.map(({ made }) => destroyMachine(rollout, made.id)))
      throw error
    }
    await moveMarks(rollout, pairs)
    for (const { old } of pairs) await destroyMachine(rollout, old.id, nonces.get(old.id))
    return pairs.map(({ made }) => made.id)
  }).finally(() => rollout.progress.end())
}

/** The new machine gets no requests yet. */
async function startBeside(rollout: Rollout, { machine: old, config }: MachineChange): Promise<Replacement> {
  const made = await createMachine(rollout, {
    region: old.region,
    config: { ...config, metadata: { ...config.metadata, [replacementMark]: 'new' } },
    skip_service_registration: true,
    ...(isStoppedOnPurpose(old) && { skip_launch: true }),
  })
  rollout.progress.show(`Starting machine ${made.id} beside ${old.id}`)
  return { old, made }
}

async function waitForNew(rollout: Rollout, { old, made }: Replacement): Promise<void> {
  const { session, app, waitSeconds } = rollout
  await withLastLogLines(rollout, made.id, async () => {
    if (isStoppedOnPurpose(old)) await waitForState(session, app, made, 'stopped', waitSeconds)
    else await waitUntilUp(rollout, made.id)
  })
}

async function moveMarks({ session, app }: Rollout, pairs: Replacement[]): Promise<void> {
  const path = (id: string) => `${machinePath(app, id)}/metadata/${replacementMark}`
  for (const { made } of pairs) await request(session, 'DELETE', path(made.id))
  for (const { old } of pairs) await request(session, 'POST', path(old.id), { value: 'old' })
}
