import { Type } from 'typebox'
import { createMachine, getMachine, listMachinesOf, updateMachine } from '../../actions/app/machine.ts'
import { deleteMachineOf, listEventsOf, listVersionsOf } from '../../actions/app/machine-command.ts'
import { checked } from '../../actions/context.ts'
import { action, newName } from '../../model/account/access.ts'
import { machineStates } from '../../model/app/machine.ts'
import { CreateMachine, UpdateMachine } from '../../model/app/machine-request.ts'
import { badRequest } from '../../model/errors.ts'
import type { StateTable } from '../../model/states.ts'
import { mountTargets, pathTargets } from '../http/access.ts'
import { type Call, type Route, route } from '../http/route.ts'
import { foreignApp, leased, noApp, noMachine, notAllowed, wrongState } from './error-text.ts'
import { ConfigView, EventView, eventView, MachineView, machineView } from './machine-view.ts'
import { ByApp, ByMachine, LeaseHeader } from './params.ts'

export const Ok = Type.Object({ ok: Type.Boolean() })

// Some clients send the name of a flag without a value.
const flagWords = ['true', 'false', '1', '0', ''] as const
export const flag = (description: string) => Type.Optional(Type.Enum([...flagWords], { description }))
export const isSet = (word: (typeof flagWords)[number] | undefined) => word === 'true' || word === '1' || word === ''

export const listFilters = {
  include_deleted: flag('Include destroyed ones.'),
  region: Type.Optional(Type.String({ description: 'Only in this region.' })),
  state: Type.Optional(Type.String({ description: 'Only in one of these states, separated by commas.' })),
  summary: flag('Omit configuration, events and checks.'),
}

/** The parameters of lists in the order of the last change. */
export const changeQuery = {
  updated_after: Type.Optional(Type.String({ description: 'Only what changed after this time.' })),
  cursor: Type.Optional(Type.String({ description: '`next_cursor` of the previous page.' })),
  limit: Type.Optional(
    Type.Integer({ minimum: 1, maximum: 1000, description: 'The maximum number of results; 1000 when omitted.' }),
  ),
}

/** Renders RFC 3339 with all digits of the database, so that the next page starts exactly after this one. */
export function changeTime(updatedText: string | undefined): string {
  return updatedText === undefined ? '' : `${updatedText.replace(' ', 'T').replace(/\+00$/, '')}Z`
}

/** Identifies a machine, with the nonce of a lease if the caller sent one. */
export function keyOf(call: {
  params: { app_name: string; machine_id: string }
  headers: Call<never, never, never>['headers']
}) {
  const nonce = call.headers['fly-machine-lease-nonce']
  return {
    app: call.params.app_name,
    id: call.params.machine_id,
    nonce: nonce === undefined ? undefined : String(nonce),
  }
}

interface ListFilter {
  include_deleted?: (typeof flagWords)[number]
  region?: string
  state?: string
}

export function readFilter(query: ListFilter, known: StateTable = machineStates) {
  const states = query.state ? query.state.split(',').map((state) => state.trim()) : null
  const unknown = states?.find((state) => !Object.hasOwn(known, state))
  if (unknown !== undefined) throw badRequest(`state must be one of ${Object.keys(known).join(', ')}`)
  const includeDeleted = isSet(query.include_deleted) || states?.includes('destroyed') === true
  return { includeDeleted, region: query.region || null, states }
}

const metadataPrefix = 'metadata.'

/** Reads parameters such as `metadata.role=web`. */
function readMetadata(search: URLSearchParams): Record<string, string> {
  const given = [...search].filter(([name]) => name.startsWith(metadataPrefix))
  return Object.fromEntries(given.map(([name, value]) => [name.slice(metadataPrefix.length), value]))
}

export const machineRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/machines',
    id: 'listMachines',
    tag: 'Machines',
    summary: 'List the machines of an app',
    description:
      'Oldest first. `metadata.<key>=<value>` lists only machines with this entry; several conditions must all hold.',
    scope: 'read',
    params: ByApp,
    query: Type.Object({ ...listFilters, include_leases: flag('Include the current lease.') }),
    status: 200,
    response: Type.Array(MachineView),
    errors: { 403: foreignApp, 404: noApp },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query, search }) => {
      const filter = { ...(await checked(ctx, () => readFilter(query))), metadata: readMetadata(search) }
      const machines = await listMachinesOf(ctx, params.app_name, filter)
      const options = { summary: isSet(query.summary), includeLease: isSet(query.include_leases) }
      return machines.map((machine) => machineView(ctx.settings, machine, options))
    },
  }),
  route({
    method: 'POST',
    path: '/v1/apps/{app_name}/machines',
    id: 'createMachine',
    tag: 'Machines',
    summary: 'Create a machine',
    description:
      'Returns immediately with the state `created`; the machine is then started, or `stopped` if `skip_launch` is set. If its image or program cannot be started the first time, the machine is destroyed; `failure` and its events say why.',
    scope: 'write',
    targets: (call) => [{ app: call.params.app_name!, machine: newName, action: action.create }, ...mountTargets(call)],
    params: ByApp,
    body: CreateMachine,
    ignoreNulls: true,
    status: 200,
    response: MachineView,
    errors: {
      403: notAllowed,
      404: `${noApp} Or: there is no such volume.`,
      409: 'Another machine of the app has this name.',
      412: 'The volume is attached to another machine, or the secrets are older than requested.',
      422: 'There is not enough capacity, or the region is not available (`status` is then `insufficient_capacity`).',
    },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => {
      const machine = await createMachine(ctx, params.app_name, body)
      return machineView(ctx.settings, machine, { includeNonce: true })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/machines/{machine_id}',
    id: 'getMachine',
    tag: 'Machines',
    summary: 'Show a machine',
    description: 'A destroyed machine is shown for an hour.',
    scope: 'read',
    machineSelf: true,
    params: ByMachine,
    query: Type.Object({ include_leases: flag('Include the current lease.') }),
    status: 200,
    response: MachineView,
    errors: { 403: foreignApp, 404: noMachine },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const machine = await getMachine(ctx, params.app_name, params.machine_id)
      return machineView(ctx.settings, machine, { includeLease: isSet(query.include_leases) })
    },
  }),
  route({
    method: 'POST',
    path: '/v1/apps/{app_name}/machines/{machine_id}',
    id: 'updateMachine',
    tag: 'Machines',
    summary: 'Update a machine',
    description:
      'Takes the complete configuration and creates a new version. A running machine is restarted with it; a stopped one stays stopped. Name and region do not change.',
    scope: 'write',
    targets: (call) => [...pathTargets('', call.params), ...mountTargets(call)],
    action: 'write',
    params: ByMachine,
    headers: LeaseHeader,
    body: UpdateMachine,
    ignoreNulls: true,
    status: 200,
    response: MachineView,
    errors: {
      403: notAllowed,
      404: noMachine,
      409: `${leased} Or: \`current_version\` is not the current version. Or: there is not enough capacity.`,
      412: wrongState,
    },
    wrongTypeStatus: 400,
    run: async (call) => {
      const { ctx, body } = call
      return machineView(ctx.settings, await updateMachine(ctx, keyOf(call), body), {
        includeNonce: body.lease_ttl !== undefined,
      })
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/apps/{app_name}/machines/{machine_id}',
    id: 'deleteMachine',
    tag: 'Machines',
    summary: 'Destroy a machine',
    scope: 'write',
    machineSelf: true,
    params: ByMachine,
    headers: LeaseHeader,
    query: Type.Object({ force: flag('Destroy it even if it is running.'), kill: flag('Alias of `force`.') }),
    status: 200,
    response: Ok,
    errors: {
      403: notAllowed,
      404: noMachine,
      409: leased,
      412: 'The machine is running and `force` was not given.',
    },
    wrongTypeStatus: 400,
    run: async (call) => {
      await deleteMachineOf(call.ctx, keyOf(call), isSet(call.query.force) || isSet(call.query.kill))
      return { ok: true }
    },
  }),
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/machines/{machine_id}/events',
    id: 'listMachineEvents',
    tag: 'Machines',
    summary: 'List the events of a machine',
    description: 'Newest first.',
    scope: 'read',
    machineSelf: true,
    params: ByMachine,
    query: Type.Object({
      limit: Type.Optional(
        Type.Integer({
          minimum: 1,
          maximum: 50,
          description: 'The maximum number of events; 20 when omitted.',
          refusal: 'limit must be from 1 to 50',
        }),
      ),
    }),
    status: 200,
    response: Type.Array(EventView),
    errors: { 403: foreignApp, 404: noMachine },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const events = await listEventsOf(ctx, params.app_name, params.machine_id, query.limit ?? 20)
      return events.map(eventView)
    },
  }),
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/machines/{machine_id}/versions',
    id: 'listMachineVersions',
    tag: 'Machines',
    summary: 'List the versions of a machine',
    description: 'Newest first, at most 100.',
    scope: 'read',
    machineSelf: true,
    params: ByMachine,
    status: 200,
    response: Type.Array(Type.Object({ version: Type.String(), user_config: ConfigView })),
    errors: { 403: foreignApp, 404: noMachine },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => {
      const versions = await listVersionsOf(ctx, params.app_name, params.machine_id)
      return versions.map(({ version, config }) => ({ version, user_config: config }))
    },
  }),
]
