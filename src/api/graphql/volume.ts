import { requireAccess } from '../../actions/account/access.ts'
import { getApp, getAppNameOf } from '../../actions/app/app.ts'
import { getMachine } from '../../actions/app/machine.ts'
import { getVolume, listSnapshotsOf } from '../../actions/app/volume.ts'
import { action } from '../../model/account/access.ts'
import type { Snapshot, Volume } from '../../model/app/volume.ts'
import { toRfc3339 } from '../../model/time.ts'
import { snapshotView } from '../app/volume-view.ts'
import { machineNode } from './machine.ts'
import { type Asker, appNode } from './node.ts'
import { connection, type GraphqlNode } from './view.ts'

/** Finds a machine that the caller knows only by its id. */
export async function machineById(asker: Asker, id: string): Promise<GraphqlNode> {
  const appName = await getAppNameOf(asker.ctx, 'machine', id)
  return machineOfApp(asker, appName, id)
}

/** Finds a volume that the caller knows only by its id. */
export async function volumeById(asker: Asker, id: string): Promise<GraphqlNode> {
  const appName = await getAppNameOf(asker.ctx, 'volume', id)
  await requireAccess(asker.ctx, [{ app: appName, volume: id }], action.read)
  return volumeNode(asker, appName, await getVolume(asker.ctx, appName, id))
}

async function machineOfApp(asker: Asker, appName: string, id: string): Promise<GraphqlNode> {
  await requireAccess(asker.ctx, [{ app: appName, machine: id }], action.read)
  const node = machineNode(asker.ctx, await getMachine(asker.ctx, appName, id))
  return { ...node, app: () => wholeAppNode(asker, appName) }
}

/** A token for one machine or volume does not show its app. */
async function wholeAppNode(asker: Asker, appName: string): Promise<GraphqlNode> {
  await requireAccess(asker.ctx, [{ app: appName }], action.read)
  return appNode(asker, await getApp(asker.ctx, appName))
}

function volumeNode(asker: Asker, appName: string, volume: Volume): GraphqlNode {
  const { id, machineId } = volume
  return {
    __typename: 'Volume',
    id,
    name: volume.name,
    state: volume.state,
    status: volume.state,
    region: volume.region,
    sizeGb: volume.sizeGb,
    encrypted: false,
    snapshotRetentionDays: volume.snapshotRetention,
    createdAt: toRfc3339(volume.createdAt),
    app: () => wholeAppNode(asker, appName),
    attachedMachine: () => machineId && machineOfApp(asker, appName, machineId),
    snapshots: async () => connection((await listSnapshotsOf(asker.ctx, appName, id)).map(snapshotNode)),
  }
}

function snapshotNode(snapshot: Snapshot): GraphqlNode {
  const { id, size, digest, status, retention_days, created_at } = snapshotView(snapshot)
  return {
    __typename: 'VolumeSnapshot',
    id,
    size,
    digest,
    status,
    retentionDays: retention_days,
    createdAt: created_at,
  }
}
