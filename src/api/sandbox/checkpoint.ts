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
import { Answer, ndjson, type Route, route } from '../http/route.ts'
import { ByName, readOnly, sandboxAbsent } from './sandbox.ts'

const ById = Type.Object({
  name: Type.String({ description: 'The name of the sandbox.' }),
  checkpoint_id: Type.String({ description: '`v1`, `v2`, …, or `auto-1`, …; `Current` is the state now.' }),
})

const absent = 'There is no such sandbox or no such checkpoint, or none that this token may see.'
const busy = 'A checkpoint or a restore of this sandbox is in progress.'
const asLines = 'The answer is a stream of lines; the last one is of the type `complete` or `error`.'

export const checkpointRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/sandboxes/{name}/checkpoint',
    id: 'createCheckpoint',
    tag: 'Checkpoints',
    summary: 'Make a checkpoint',
    description: `A copy of everything that was written in the sandbox; memory is not part of it. ${asLines} It is made also when the client goes away.`,
    scope: 'write',
    params: ByName,
    query: CreateCheckpoint,
    body: CreateCheckpoint,
    status: 200,
    response: CheckpointEvent,
    streams: true,
    errors: { 403: readOnly, 404: sandboxAbsent, 409: `${busy} Or: there are as many as there may be.` },
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
      includeAuto: Type.Optional(Type.String({ description: '`true` shows those that restores made as well.' })),
      history: Type.Optional(Type.String({ description: 'Only this one and those that came from it.' })),
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
    errors: { 403: readOnly, 404: absent, 409: 'It is the state now, or it is being restored.' },
    wrongTypeStatus: 400,
    run: ({ ctx, params }) => deleteCheckpoint(ctx, params.name, params.checkpoint_id),
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/{name}/checkpoints/{checkpoint_id}/restore',
    id: 'restoreCheckpoint',
    tag: 'Checkpoints',
    summary: 'Go back to a checkpoint',
    description: `Every process ends, what was written is replaced, and the services start again. The state before is kept as a checkpoint of its own. ${asLines}`,
    scope: 'write',
    params: ById,
    query: Type.Object({
      wait: Type.Optional(
        Type.String({ description: '`false` answers 202 with the first event at once, for those whom it ends.' }),
      ),
    }),
    status: 200,
    otherStatus: 202,
    response: CheckpointEvent,
    streams: true,
    errors: { 403: readOnly, 404: absent, 409: busy },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const kept = await restoreCheckpoint(ctx, params.name, params.checkpoint_id)
      const beginning = [`Restoring checkpoint ${params.checkpoint_id}`, `The state before is kept as ${kept.id}`]
      if (query.wait === 'false') return new Answer(202, eventNow({ type: 'info', data: beginning.join('. ') }))
      return progress(ctx, kept, beginning, `Restored to ${params.checkpoint_id}`)
    },
  }),
]

function progress(ctx: LiveContext, checkpoint: Checkpoint, beginning: string[], end: string) {
  return ndjson(async (send, gone) => {
    const tell = (event: object) => send(eventNow(event))
    for (const data of beginning) tell({ type: 'info', data })
    const { failure } = await waitForCheckpoint(ctx, checkpoint, gone)
    if (failure === undefined) tell({ type: 'complete', data: end })
    else tell({ type: 'error', error: failure })
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
