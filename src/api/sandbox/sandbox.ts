import { Type } from 'typebox'
import {
  changeSandbox,
  createSandbox,
  deleteSandbox,
  getOrganizationOf,
  listVisibleSandboxes,
} from '../../actions/sandbox/sandbox.ts'
import type { LiveContext } from '../../live/context.ts'
import { checkSandbox, getSandbox, isolationOf, restartSandbox, upgradeSandbox } from '../../live/sandbox/sandbox.ts'
import { type WatchEvent, watchSandboxes } from '../../live/sandbox/watch.ts'
import {
  CreateSandbox,
  maxSandboxes,
  runtimeVersion,
  type SandboxCounts,
  type SandboxDetails,
  SandboxEvent,
  type SandboxImage,
  SandboxPage,
  SandboxView,
  statusOf,
  UpdateSandbox,
} from '../../model/sandbox/sandbox.ts'
import { nowMicros, toRfc3339 } from '../../model/time.ts'
import { noOrganization, overQuota, readOnly } from '../error-text.ts'
import { textField } from '../http/access.ts'
import { ndjson, type Route, route } from '../http/route.ts'

export const ByName = Type.Object({ name: Type.String({ description: 'The name of the sandbox.' }) })

export const sandboxAbsent = 'The sandbox does not exist or is not visible to this token.'

export const cannotStart =
  'The sandbox cannot be started (`error` is then `sandbox_unusable`), or a checkpoint or a restore takes long.'

const Organization = Type.Optional(
  Type.String({ description: "An organization; the token's own when omitted, all of them for a root token." }),
)

export const sandboxResourceRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/sandboxes',
    id: 'createSandbox',
    tag: 'Sandboxes',
    summary: 'Create a sandbox',
    description: 'The sandbox has its URL immediately and is `cold`: the first use starts it.',
    scope: 'write',
    targets: ({ body }) => [{ newSandboxIn: textField(body, 'org_slug') ?? textField(body, 'organization') }],
    body: CreateSandbox,
    status: 201,
    response: SandboxView,
    errors: {
      403: `${readOnly} Or: it is limited to one sandbox.`,
      404: noOrganization,
      409: 'The name is taken, possibly by another organization.',
      429: `There are ${maxSandboxes} sandboxes (\`error\` is then \`concurrent_sprite_limit_exceeded\`), or the rate limit is exceeded (\`sprite_creation_rate_limited\`).`,
    },
    wrongTypeStatus: 400,
    rateLimitCode: 'sprite_creation_rate_limited',
    run: async ({ ctx, body }) => sandboxView(ctx, await createSandbox(ctx, body)),
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes',
    id: 'listSandboxes',
    tag: 'Sandboxes',
    summary: 'List sandboxes, or watch them',
    description:
      'Ordered by name. With `Accept: application/x-ndjson` the response is a stream: a line per sandbox, then a line per change, and a `heartbeat` when nothing changes.',
    scope: 'read',
    targets: ({ query }) => [{ org: textField(query, 'org_slug'), feature: 'sandbox' }],
    query: Type.Object({
      prefix: Type.Optional(Type.String({ description: 'Only names that start with this.' })),
      max_results: Type.Optional(Type.Integer({ description: '1 to 50 on a page; 50 when omitted or larger.' })),
      continuation_token: Type.Optional(
        Type.String({ description: '`next_continuation_token` of the previous page.' }),
      ),
      org_slug: Organization,
      bulk_load: Type.Optional(Type.String({ description: 'Has no effect.' })),
    }),
    status: 200,
    response: SandboxPage,
    lines: SandboxEvent,
    errors: { 404: noOrganization },
    wrongTypeStatus: 400,
    run: async ({ ctx, query, headers }) => {
      const page = await listVisibleSandboxes(ctx, query)
      if (headers.accept?.includes('application/x-ndjson')) return watch(ctx, query)
      const isolation = await isolationOf(ctx)
      const counts = countsView(page.counts, page.orgSlug)
      return {
        sprites: page.sandboxes.map((sandbox) => viewOf(ctx, sandbox, isolation)),
        has_more: page.nextToken !== null,
        next_continuation_token: page.nextToken,
        ...counts,
        org: counts,
      }
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/{name}',
    id: 'getSandbox',
    tag: 'Sandboxes',
    summary: 'Show a sandbox',
    scope: 'read',
    params: ByName,
    status: 200,
    response: SandboxView,
    errors: { 404: sandboxAbsent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => sandboxView(ctx, await getSandbox(ctx, params.name, 'read')),
  }),
  route({
    method: 'PUT',
    path: '/v1/sandboxes/{name}',
    id: 'updateSandbox',
    tag: 'Sandboxes',
    summary: 'Change a sandbox',
    description:
      'Only the given fields change. They apply immediately; variables apply to processes that are started afterwards.',
    scope: 'write',
    params: ByName,
    body: UpdateSandbox,
    status: 200,
    response: SandboxView,
    errors: { 403: readOnly, 404: sandboxAbsent, 422: overQuota },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => sandboxView(ctx, await changeSandbox(ctx, params.name, body)),
  }),
  route({
    method: 'DELETE',
    path: '/v1/sandboxes/{name}',
    id: 'deleteSandbox',
    tag: 'Sandboxes',
    summary: 'Delete a sandbox',
    description: 'Deletes its files and checkpoints as well. The name is free immediately.',
    scope: 'write',
    params: ByName,
    status: 204,
    errors: { 403: readOnly, 404: sandboxAbsent },
    wrongTypeStatus: 400,
    run: ({ ctx, params }) => deleteSandbox(ctx, params.name),
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/{name}/restart',
    id: 'restartSandbox',
    tag: 'Sandboxes',
    summary: 'Restart a sandbox',
    description: 'Ends all processes and starts the services again. Files are kept.',
    scope: 'write',
    action: 'control',
    params: ByName,
    status: 200,
    response: Type.Object({ sprite_name: Type.String(), machine_id: Type.String(), message: Type.String() }),
    errors: { 403: readOnly, 404: sandboxAbsent, 409: cannotStart },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => {
      const { id, name } = await restartSandbox(ctx, params.name)
      return { sprite_name: name, machine_id: id, message: `${name} has been restarted` }
    },
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/{name}/upgrade',
    id: 'upgradeSandbox',
    tag: 'Sandboxes',
    summary: 'Upgrade a sandbox',
    description: 'Updates the sandbox to the current programs of the host. A running sandbox is restarted.',
    scope: 'write',
    params: ByName,
    body: Type.Object({
      version: Type.Optional(Type.String({ description: 'Has no effect; there is only one version.' })),
    }),
    status: 200,
    response: Type.Object({ name: Type.String(), status: Type.String() }),
    errors: { 403: readOnly, 404: sandboxAbsent, 409: cannotStart },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => {
      const { name } = await upgradeSandbox(ctx, params.name)
      return { name, status: 'upgraded' }
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/{name}/check',
    id: 'checkSandbox',
    tag: 'Sandboxes',
    summary: 'Check the health of a sandbox without waking it',
    scope: 'read',
    params: ByName,
    status: 200,
    response: Type.Object({
      sprite_name: Type.String(),
      sprite_id: Type.String(),
      status: Type.Enum(['healthy', 'hibernated', 'unhealthy', 'error']),
      reason: Type.Optional(Type.String()),
      checked_at: Type.String({ format: 'date-time' }),
      elapsed: Type.Number({ description: 'Duration of the check in milliseconds.' }),
    }),
    errors: { 404: sandboxAbsent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => {
      const started = performance.now()
      const { sandbox, status, reason } = await checkSandbox(ctx, params.name)
      return {
        sprite_name: sandbox.name,
        sprite_id: sandbox.id,
        status,
        ...(reason && { reason }),
        checked_at: toRfc3339(nowMicros()),
        elapsed: Math.round((performance.now() - started) * 10) / 10,
      }
    },
  }),
  route({
    method: 'GET',
    path: '/v1/organization',
    id: 'getSandboxOrganization',
    tag: 'Sandboxes',
    summary: 'Show the organization of the token',
    scope: 'read',
    query: Type.Object({ org_slug: Organization }),
    status: 200,
    response: Type.Object({
      organization: Type.Object({
        slug: Type.String(),
        sprites_enabled: Type.Boolean(),
        active_sprites: Type.Array(Type.String(), { description: 'The names of running sandboxes.' }),
        max_sprites: Type.Integer(),
        active_sprite_limit: Type.Integer(),
      }),
    }),
    errors: { 404: noOrganization },
    wrongTypeStatus: 400,
    run: async ({ ctx, query }) => {
      const { slug, running, maxSandboxes: limit } = await getOrganizationOf(ctx, query.org_slug)
      const limits = { max_sprites: limit, active_sprite_limit: limit }
      return { organization: { slug, sprites_enabled: true, active_sprites: running, ...limits } }
    },
  }),
]

function watch(ctx: LiveContext, query: { prefix?: string; org_slug?: string }) {
  const filter = { prefix: query.prefix ?? '', orgSlug: query.org_slug ?? null }
  return ndjson((send, disconnected) => watchSandboxes(ctx, filter, (event) => send(eventView(event)), disconnected))
}

function eventView({ sandbox, isGone, counts, orgSlug }: WatchEvent) {
  const shared = { timestamp: toRfc3339(nowMicros()), org: countsView(counts, orgSlug) }
  if (!sandbox) return { type: 'heartbeat', ...shared }
  const { name, lastRunningAt } = sandbox
  return {
    ...(isGone ? { type: 'deleted', name, status: 'deleted' } : { name, status: statusOf(sandbox) }),
    running_version: runtimeVersion,
    ...(lastRunningAt && { last_running_at: toRfc3339(lastRunningAt) }),
    ...shared,
  }
}

function countsView({ running, cold }: SandboxCounts, orgSlug: string | null) {
  const limits = { running_limit: maxSandboxes, warm_limit: maxSandboxes }
  return { ...(orgSlug !== null && { name: orgSlug }), running, warm: 0, cold, ...limits }
}

async function sandboxView(ctx: LiveContext, sandbox: SandboxDetails) {
  return viewOf(ctx, sandbox, await isolationOf(ctx))
}

function viewOf(
  { settings }: LiveContext,
  sandbox: SandboxDetails,
  { kind, network, gap, limitsStorage = false }: Awaited<ReturnType<typeof isolationOf>>,
) {
  return {
    id: sandbox.id,
    name: sandbox.name,
    organization: sandbox.orgSlug,
    org_slug: sandbox.orgSlug,
    status: statusOf(sandbox),
    ...(sandbox.problem !== null && { problem: sandbox.problem }),
    url: settings.sandboxUrl(sandbox.name),
    url_settings: { auth: sandbox.urlAuth, private_access: sandbox.privateAccess },
    config: {
      ram_mb: sandbox.memoryMb,
      cpus: sandbox.cpus,
      region: sandbox.region,
      storage_gb: sandbox.storageGb,
    },
    storage: { ...storageView(sandbox), enforced: limitsStorage },
    ...(sandbox.image && { image: imageView(sandbox.image) }),
    environment: sandbox.environment,
    labels: sandbox.labels,
    primary_region: sandbox.region,
    version: runtimeVersion,
    environment_version: runtimeVersion,
    isolation: { kind, network, ...(gap && { gap }) },
    created_at: toRfc3339(sandbox.createdAt),
    updated_at: toRfc3339(sandbox.updatedAt),
    ...(sandbox.lastRunningAt && { last_running_at: toRfc3339(sandbox.lastRunningAt) }),
  }
}

function imageView({ reference, digest, problem }: SandboxImage) {
  return { reference, ...(digest !== null && { digest }), ...(problem !== null && { problem }) }
}

function storageView({ storageGb, usedBytes, measuredAt }: SandboxDetails) {
  const limit = { limit_bytes: storageGb * 1024 ** 3 }
  return measuredAt === null ? limit : { ...limit, used_bytes: usedBytes, measured_at: toRfc3339(measuredAt) }
}
