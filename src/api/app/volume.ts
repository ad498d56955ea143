import { Type } from 'typebox'
import {
  createSnapshot,
  createVolume,
  deleteVolume,
  extendVolume,
  getVolume,
  listSnapshotsOf,
  listVolumesOf,
  listVolumesOfOrg,
  updateVolume,
} from '../../actions/app/volume.ts'
import { checked } from '../../actions/context.ts'
import { growsAtStart } from '../../live/app/volume.ts'
import { action, newName } from '../../model/account/access.ts'
import { CreateVolume, ExtendVolume, UpdateVolume, volumeStates } from '../../model/app/volume.ts'
import { noOrganization } from '../error-text.ts'
import { sourceTargets } from '../http/access.ts'
import { type Route, route } from '../http/route.ts'
import { foreignApp, noApp, notAllowed } from './error-text.ts'
import { changeQuery, changeTime, listFilters, readFilter } from './machine.ts'
import { ByApp } from './params.ts'
import { SnapshotView, snapshotView, VolumeView, volumeView } from './volume-view.ts'

const ById = Type.Object({
  ...ByApp.properties,
  volume_id: Type.String({ description: '`vol_` and 16 lowercase letters and digits.' }),
})

const Summary = Type.Optional(
  Type.Enum(['true', 'false', '1', '0'], {
    description: 'Omit fields that have to be read from the disk.',
    refusal: 'summary must be true, false, 1 or 0',
  }),
)

const noVolume = `${noApp} Or: it has no such volume.`

export const volumeRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/volumes',
    id: 'listVolumes',
    tag: 'Volumes',
    summary: 'List the volumes of an app, oldest first',
    scope: 'read',
    params: ByApp,
    query: Type.Object({ summary: Summary }),
    status: 200,
    response: Type.Array(VolumeView),
    errors: { 403: foreignApp, 404: noApp },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const volumes = await listVolumesOf(ctx, params.app_name)
      return volumes.map((volume) => volumeView(ctx, volume, !isTrue(query.summary)))
    },
  }),
  route({
    method: 'POST',
    path: '/v1/apps/{app_name}/volumes',
    id: 'createVolume',
    tag: 'Volumes',
    summary: 'Create a volume, empty or as a copy',
    scope: 'write',
    targets: ({ params, body }) => [
      { app: params.app_name!, volume: newName, action: action.create },
      ...sourceTargets(body),
    ],
    params: ByApp,
    body: CreateVolume,
    ignoreNulls: true,
    status: 200,
    response: VolumeView,
    errors: {
      403: notAllowed,
      404: `${noApp} Or: the source of the copy does not exist.`,
      412: 'The source of the copy is not ready.',
      422: 'A field is missing or not valid.',
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => volumeView(ctx, await createVolume(ctx, params.app_name, body)),
  }),
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/volumes/{volume_id}',
    id: 'getVolume',
    tag: 'Volumes',
    summary: 'Show a volume',
    scope: 'read',
    params: ById,
    status: 200,
    response: VolumeView,
    errors: { 403: foreignApp, 404: noVolume },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => volumeView(ctx, await getVolume(ctx, params.app_name, params.volume_id)),
  }),
  route({
    method: 'PUT',
    path: '/v1/apps/{app_name}/volumes/{volume_id}',
    id: 'updateVolume',
    tag: 'Volumes',
    summary: 'Change the backup settings of a volume',
    scope: 'write',
    params: ById,
    body: UpdateVolume,
    ignoreNulls: true,
    status: 200,
    response: VolumeView,
    errors: { 403: notAllowed, 404: noVolume, 422: 'A field is not valid.' },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) =>
      volumeView(ctx, await updateVolume(ctx, params.app_name, params.volume_id, body)),
  }),
  route({
    method: 'DELETE',
    path: '/v1/apps/{app_name}/volumes/{volume_id}',
    id: 'deleteVolume',
    tag: 'Volumes',
    summary: 'Delete a volume',
    description:
      'The volume is `pending_destroy` for a day, during which it can still be copied. Its snapshots are kept for their retention time.',
    scope: 'write',
    params: ById,
    status: 200,
    response: VolumeView,
    errors: { 403: notAllowed, 404: noVolume, 412: 'The volume is attached to a machine.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => volumeView(ctx, await deleteVolume(ctx, params.app_name, params.volume_id)),
  }),
  route({
    method: 'PUT',
    path: '/v1/apps/{app_name}/volumes/{volume_id}/extend',
    id: 'extendVolume',
    tag: 'Volumes',
    summary: 'Extend a volume',
    scope: 'write',
    params: ById,
    body: ExtendVolume,
    ignoreNulls: true,
    status: 200,
    response: Type.Object(
      {
        volume: VolumeView,
        needs_restart: Type.Boolean({
          description:
            'Whether the machine sees the new size only after its next start, because the kernel cannot grow mounted disks.',
        }),
      },
      { title: 'ExtendedVolume' },
    ),
    errors: {
      403: notAllowed,
      404: noVolume,
      409: 'The state of the volume does not allow it.',
      422: '`size_gb` is missing, not valid, or not larger than the current size.',
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => {
      const { volume, isInUse } = await extendVolume(ctx, params.app_name, params.volume_id, body.size_gb)
      return { volume: volumeView(ctx, volume), needs_restart: isInUse && (await growsAtStart(ctx)) }
    },
  }),
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/volumes/{volume_id}/snapshots',
    id: 'listSnapshots',
    tag: 'Volumes',
    summary: 'List the snapshots of a volume, newest first',
    scope: 'read',
    params: ById,
    status: 200,
    response: Type.Array(SnapshotView),
    errors: { 403: foreignApp, 404: noVolume },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => (await listSnapshotsOf(ctx, params.app_name, params.volume_id)).map(snapshotView),
  }),
  route({
    method: 'POST',
    path: '/v1/apps/{app_name}/volumes/{volume_id}/snapshots',
    id: 'createSnapshot',
    tag: 'Volumes',
    summary: 'Create a snapshot of a volume',
    description:
      'The snapshot is taken in the background and is crash-consistent. Writes to the volume wait meanwhile.',
    scope: 'write',
    action: 'create',
    params: ById,
    status: 200,
    errors: {
      403: notAllowed,
      404: noVolume,
      409: 'Another snapshot of the volume is in progress.',
      412: 'The volume is not `created`.',
    },
    wrongTypeStatus: 400,
    run: ({ ctx, params }) => createSnapshot(ctx, params.app_name, params.volume_id),
  }),
  route({
    method: 'GET',
    path: '/v1/orgs/{org_slug}/volumes',
    id: 'listOrgVolumes',
    tag: 'Volumes',
    summary: 'List the volumes of all apps of an organization',
    description:
      'In the order of their last change. To follow changes, pass `last_updated_at` of the previous page as `updated_after`.',
    scope: 'read',
    params: Type.Object({ org_slug: Type.String({ description: 'The organization.' }) }),
    query: Type.Object({
      ...listFilters,
      summary: Summary,
      ...changeQuery,
    }),
    status: 200,
    response: Type.Object(
      {
        volumes: Type.Array(VolumeView),
        next_cursor: Type.Optional(Type.String({ description: 'Present when there is another page.' })),
        last_volume_id: Type.String(),
        last_updated_at: Type.String(),
      },
      { title: 'VolumePage' },
    ),
    errors: { 404: noOrganization },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const page = { updatedAfter: query.updated_after, cursor: query.cursor, limit: query.limit }
      const filter = await checked(ctx, () => readFilter(query, volumeStates))
      const { rows, nextCursor } = await listVolumesOfOrg(ctx, params.org_slug, filter, page)
      const last = rows.at(-1)
      return {
        volumes: rows.map((volume) => ({
          ...volumeView(ctx, volume, !isTrue(query.summary)),
          app_name: volume.appName,
        })),
        ...(nextCursor ? { next_cursor: nextCursor } : {}),
        last_volume_id: last?.id ?? '',
        last_updated_at: changeTime(last?.updatedText),
      }
    },
  }),
]

function isTrue(text: string | undefined): boolean {
  return text === 'true' || text === '1'
}
