import { Type } from 'typebox'
import type { LiveContext } from '../../live/context.ts'
import {
  createCheckpoint,
  deleteCheckpoint,
  listVisibleCheckpoints,
  restoreCheckpoint,
  type VisibleCheckpoints,
  waitForCheckpoint,
} from '../../live/sandbox/checkpoint.ts'
import { notFound } from '../../model/errors.ts'
import {
  type Checkpoint,
  CheckpointEvent,
  CheckpointView,
  CreateCheckpoint,
  currentCheckpoint,
  historyOf,
} from '../../model/sandbox/checkpoint.ts'
import { readFlag } from '../../model/sandbox/exec.ts'
import { nowMicros, toRfc3339 } from '../../model/time.ts'
import { readOnly } from '../error-text.ts'
import { Answer, ndjson, type Route, route } from '../http/route.ts'
import { ByName, sandboxAbsent } from './sandbox.ts'

const ById = Type.Object({
  name: Type.String({ description: 'The name of the sandbox.' }),
  checkpoint_id: Type.String({ description: '`v1`, `v2`, …, or `auto-1`, …; `Current` is the current state.' }),
})

const absent = 'The sandbox or the checkpoint does not exist or is not visible to this token.'
const busy = 'A checkpoint or a restore of this sandbox is in progress.'
const asLines = 'The response is a stream of lines; the last one has the type `complete` or `error`.'

export const checkpointRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/sandboxes/{name}/checkpoint',
    id: 'createCheckpoint',
    tag: 'Checkpoints',
    summary: 'Create a checkpoint',
    description: `Copies all files that were written in the sandbox; memory is not included. ${asLines} It completes even if the client disconnects.`,
    scope: 'write',
    action: 'create',
    params: ByName,
    query: CreateCheckpoint,
    body: CreateCheckpoint,
    status: 200,
    response: CheckpointEvent,
    streams: true,
    contentType: 'application/x-ndjson',
    errors: { 403: readOnly, 404: sandboxAbsent, 409: `${busy} Or: the maximum number of checkpoints is reached.` },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query, body }) => {
      const checkpoint = await createCheckpoint(ctx, params.name, body.comment ?? query.comment ?? '')
      const { id } = checkpoint
      return progress(ctx, checkpoint, [`Creating checkpoint ${id}`], `Checkpoint ${id} created`)
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/{name}/checkpoints',
    id: 'listCheckpoints',
    tag: 'Checkpoints',
    summary: 'List checkpoints',
    description: 'Newest first.',
    scope: 'read',
    params: ByName,
    query: Type.Object({
      includeAuto: Type.Optional(Type.String({ description: '`true` includes checkpoints that restores created.' })),
      history: Type.Optional(Type.String({ description: 'Only this checkpoint and its descendants.' })),
    }),
    status: 200,
    response: Type.Array(CheckpointView),
    errors: { 404: sandboxAbsent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const { checkpoints: all } = await listVisibleCheckpoints(ctx, params.name)
      return all
        .filter(({ isAuto }) => !isAuto || readFlag(query.includeAuto ?? null))
        .map((checkpoint) => checkpointView(checkpoint, all))
        .filter(({ id, history }) => !query.history || id === query.history || history.includes(query.history))
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/{name}/checkpoints/{checkpoint_id}',
    id: 'getCheckpoint',
    tag: 'Checkpoints',
    summary: 'Show a checkpoint',
    scope: 'read',
    params: ById,
    status: 200,
    response: CheckpointView,
    errors: { 404: absent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => findIn(await listVisibleCheckpoints(ctx, params.name), params.checkpoint_id),
  }),
  route({
    method: 'DELETE',
    path: '/v1/sandboxes/{name}/checkpoints/{checkpoint_id}',
    id: 'deleteCheckpoint',
    tag: 'Checkpoints',
    summary: 'Delete a checkpoint',
    scope: 'write',
    params: ById,
    status: 204,
    errors: { 403: readOnly, 404: absent, 409: 'It is the current state, or it is being restored.' },
    wrongTypeStatus: 400,
    run: ({ ctx, params }) => deleteCheckpoint(ctx, params.name, params.checkpoint_id),
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/{name}/checkpoints/{checkpoint_id}/restore',
    id: 'restoreCheckpoint',
    tag: 'Checkpoints',
    summary: 'Restore a checkpoint',
    description: `Ends all processes, replaces the files and starts the services again. The previous state is kept as another checkpoint. ${asLines}`,
    scope: 'write',
    params: ById,
    query: Type.Object({
      wait: Type.Optional(
        Type.String({
          description:
            '`false` responds immediately with 202 and the first event, for callers inside the sandbox, which the restore ends.',
        }),
      ),
    }),
    status: 200,
    otherStatus: 202,
    response: CheckpointEvent,
    streams: true,
    contentType: 'application/x-ndjson',
    errors: { 403: readOnly, 404: absent, 409: busy },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const kept = await restoreCheckpoint(ctx, params.name, params.checkpoint_id)
      const beginning = [`Restoring checkpoint ${params.checkpoint_id}`, `The previous state is kept as ${kept.id}`]
      if (query.wait === 'false') return new Answer(202, eventNow({ type: 'info', data: beginning.join('. ') }))
      return progress(ctx, kept, beginning, `Restored to ${params.checkpoint_id}`)
    },
  }),
]

function progress(ctx: LiveContext, checkpoint: Checkpoint, beginning: string[], end: string) {
  return ndjson(async (send, disconnected) => {
    const report = (event: object) => send(eventNow(event))
    for (const data of beginning) report({ type: 'info', data })
    const { failure } = await waitForCheckpoint(ctx, checkpoint, disconnected)
    if (failure === undefined) report({ type: 'complete', data: end })
    else report({ type: 'error', error: failure })
  })
}

function eventNow(event: object) {
  return { ...event, time: toRfc3339(nowMicros()) }
}

function findIn({ sandbox, checkpoints }: VisibleCheckpoints, id: string) {
  if (id === currentCheckpoint) {
    const now = { id, createdAt: nowMicros(), comment: '', isAuto: false, sourceId: sandbox.sourceId }
    return checkpointView(now, checkpoints)
  }
  const found = checkpoints.find((checkpoint) => checkpoint.id === id)
  if (!found) throw notFound('checkpoint not found')
  return checkpointView(found, checkpoints)
}

function checkpointView(
  checkpoint: Pick<Checkpoint, 'id' | 'createdAt' | 'comment' | 'isAuto' | 'sourceId'>,
  all: readonly Checkpoint[],
) {
  return {
    id: checkpoint.id,
    create_time: toRfc3339(checkpoint.createdAt),
    ...(checkpoint.comment && { comment: checkpoint.comment }),
    ...(checkpoint.sourceId && { source_id: checkpoint.sourceId }),
    history: historyOf(checkpoint, all),
    is_auto: checkpoint.isAuto,
    health: '',
  }
}
