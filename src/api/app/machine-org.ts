import { Type } from 'typebox'
import { listMachinesOfOrg, placeMachines } from '../../actions/app/machine-org.ts'
import { checked } from '../../actions/context.ts'
import { noOrganization } from '../error-text.ts'
import { type Route, route } from '../http/route.ts'
import { changeQuery, changeTime, isSet, listFilters, readFilter } from './machine.ts'
import { MachineView, machineView } from './machine-view.ts'

export const machineOrgRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/orgs/{org_slug}/machines',
    id: 'listOrgMachines',
    tag: 'Machines',
    summary: 'List the machines of an organization',
    description:
      'In the order of their last change. To follow changes, pass `last_updated_at` of the previous page as `updated_after`.',
    scope: 'read',
    params: Type.Object({ org_slug: Type.String() }),
    query: Type.Object({
      ...listFilters,
      ...changeQuery,
    }),
    status: 200,
    response: Type.Object(
      {
        machines: Type.Array(MachineView),
        next_cursor: Type.String({ description: 'Empty on the last page.' }),
        last_machine_id: Type.String(),
        last_updated_at: Type.String(),
        error_regions: Type.Array(Type.String()),
      },
      { title: 'OrgMachinePage' },
    ),
    errors: { 404: noOrganization },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const filter = { ...(await checked(ctx, () => readFilter(query))), metadata: {} }
      const page = { updatedAfter: query.updated_after, cursor: query.cursor, limit: query.limit }
      const { rows, nextCursor } = await listMachinesOfOrg(ctx, params.org_slug, filter, page)
      const views = rows.map((machine) => ({
        ...machineView(ctx.settings, machine, { summary: isSet(query.summary) }),
        app_name: machine.appName,
      }))
      const last = rows.at(-1)
      return {
        machines: views,
        next_cursor: nextCursor ?? '',
        last_machine_id: last?.id ?? '',
        last_updated_at: changeTime(last?.updatedText),
        error_regions: [],
      }
    },
  }),
  route({
    method: 'POST',
    path: '/v1/platform/placements',
    id: 'getPlacements',
    tag: 'Machines',
    summary: 'Show where machines would be placed',
    scope: 'read',
    body: Type.Object({
      org_slug: Type.String(),
      region: Type.Optional(Type.String()),
      count: Type.Optional(
        Type.Integer({ minimum: 0, maximum: 1000, description: 'As many as fit when 0 or omitted.' }),
      ),
      compute: Type.Optional(
        Type.Object({
          cpu_kind: Type.Optional(Type.Enum(['shared', 'performance'])),
          cpus: Type.Optional(Type.Integer()),
          memory_mb: Type.Optional(Type.Integer()),
        }),
      ),
      volume_name: Type.Optional(Type.String()),
      volume_size_bytes: Type.Optional(Type.Integer()),
    }),
    ignoreNulls: true,
    status: 200,
    response: Type.Object({
      regions: Type.Array(Type.Object({ region: Type.String(), count: Type.Integer(), concurrency: Type.Integer() })),
    }),
    errors: { 404: noOrganization, 422: 'There is not enough capacity, or the region is not available.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, body }) => {
      const placed = await placeMachines(ctx, body)
      return { regions: placed.map(({ region, count }) => ({ region, count, concurrency: count })) }
    },
  }),
]
