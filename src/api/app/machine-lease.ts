import { Type } from 'typebox'
import { getMachine } from '../../actions/app/machine.ts'
import { changeMetadata } from '../../actions/app/machine-command.ts'
import { acquireLease, getLease, type LeasedMachine, releaseLease } from '../../actions/app/machine-lease.ts'
import { notFound } from '../../model/errors.ts'
import { type Route, route } from '../http/route.ts'
import { foreignApp, leased, noMachine, notAllowed } from './error-text.ts'
import { keyOf, Ok } from './machine.ts'
import { ByMachine, LeaseHeader } from './params.ts'

const base = '/v1/apps/{app_name}/machines/{machine_id}'

const LeaseView = Type.Object(
  {
    status: Type.Enum(['success']),
    data: Type.Object({
      nonce: Type.String({ description: 'The holder sends it as `fly-machine-lease-nonce`.' }),
      expires_at: Type.Integer({ description: 'Seconds since the epoch.' }),
      owner: Type.String(),
      description: Type.String(),
      version: Type.String(),
    }),
  },
  { title: 'Lease' },
)

function leaseView({ machine, lease }: LeasedMachine) {
  const { nonce, expiresAt, owner, description } = lease
  return { status: 'success', data: { nonce, expires_at: expiresAt, owner, description, version: machine.instanceId } }
}

export const machineLeaseRoutes: Route[] = [
  route({
    method: 'GET',
    path: `${base}/lease`,
    id: 'getMachineLease',
    tag: 'Machines',
    summary: 'Show the lease of a machine',
    scope: 'read',
    params: ByMachine,
    status: 200,
    response: LeaseView,
    errors: { 403: foreignApp, 404: `${noMachine} Or: it is not leased.` },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => leaseView(await getLease(ctx, params.app_name, params.machine_id)),
  }),
  route({
    method: 'POST',
    path: `${base}/lease`,
    id: 'acquireMachineLease',
    tag: 'Machines',
    summary: 'Lease a machine',
    description:
      'Until the lease expires, only requests with its nonce can change the machine. A request with the nonce extends it.',
    scope: 'write',
    action: 'control',
    params: ByMachine,
    headers: LeaseHeader,
    query: Type.Object({ ttl: Type.Optional(Type.Integer({ description: 'Seconds; the body takes precedence.' })) }),
    body: Type.Object({
      ttl: Type.Optional(Type.Integer({ description: 'Seconds; 30 when omitted.' })),
      description: Type.Optional(Type.String({ maxLength: 1000 })),
    }),
    ignoreNulls: true,
    status: 201,
    response: LeaseView,
    errors: { 403: notAllowed, 404: noMachine, 409: leased },
    wrongTypeStatus: 400,
    run: async (call) => {
      const { description, ttl } = call.body
      return leaseView(await acquireLease(call.ctx, keyOf(call), { ttl: ttl ?? call.query.ttl, description }))
    },
  }),
  route({
    method: 'DELETE',
    path: `${base}/lease`,
    id: 'releaseMachineLease',
    action: 'control',
    tag: 'Machines',
    summary: 'Release a lease',
    scope: 'write',
    params: ByMachine,
    headers: LeaseHeader,
    status: 200,
    response: Ok,
    errors: { 403: notAllowed, 404: noMachine },
    wrongTypeStatus: 400,
    run: async (call) => {
      await releaseLease(call.ctx, keyOf(call))
      return { ok: true }
    },
  }),
]

const Metadata = Type.Record(Type.String(), Type.String())
const ByKey = Type.Object({ ...ByMachine.properties, key: Type.String({ description: 'A key of its metadata.' }) })
const MetadataChange = Type.Object({
  metadata: Type.Record(Type.String(), Type.Union([Type.String(), Type.Null()]), {
    description: 'Empty and null values remove their key.',
    examples: [{ role: 'web' }],
  }),
  machine_version: Type.Optional(
    Type.String({ description: 'Fail unless this is the current version of the machine.' }),
  ),
  updated_at: Type.Optional(Type.String({ description: 'Has no effect.' })),
})

export const machineMetadataRoutes: Route[] = [
  route({
    method: 'GET',
    path: `${base}/metadata`,
    id: 'getMachineMetadata',
    tag: 'Machines',
    summary: 'Show the metadata of a machine',
    scope: 'read',
    machineSelf: true,
    params: ByMachine,
    status: 200,
    response: Metadata,
    errors: { 403: foreignApp, 404: noMachine },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => (await getMachine(ctx, params.app_name, params.machine_id)).config.metadata ?? {},
  }),
  ...(['PUT', 'PATCH'] as const).map((method) =>
    route({
      method,
      path: `${base}/metadata`,
      id: method === 'PUT' ? 'setMachineMetadata' : 'changeMachineMetadata',
      tag: 'Machines',
      summary: 'Set and remove entries of the metadata of a machine',
      description: 'Other entries and the version of the machine do not change. PUT and PATCH are equivalent.',
      scope: 'write',
      params: ByMachine,
      headers: LeaseHeader,
      body: MetadataChange,
      status: 204,
      errors: { 403: notAllowed, 404: noMachine, 412: '`machine_version` is not the current version.' },
      wrongTypeStatus: 400,
      run: async (call) => {
        const { metadata, machine_version: version } = call.body
        await changeMetadata(call.ctx, keyOf(call), metadata, version)
      },
    }),
  ),
  route({
    method: 'GET',
    path: `${base}/metadata/{key}`,
    id: 'getMachineMetadataKey',
    tag: 'Machines',
    summary: 'Show one entry of the metadata of a machine',
    scope: 'read',
    machineSelf: true,
    params: ByKey,
    status: 200,
    response: Type.Object({ value: Type.String() }),
    errors: { 403: foreignApp, 404: `${noMachine} Or: it has no such entry.` },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => {
      const { config } = await getMachine(ctx, params.app_name, params.machine_id)
      const { metadata = {} } = config
      if (!Object.hasOwn(metadata, params.key)) throw notFound('metadata key not found')
      return { value: metadata[params.key]! }
    },
  }),
  route({
    method: 'POST',
    path: `${base}/metadata/{key}`,
    id: 'setMachineMetadataKey',
    tag: 'Machines',
    summary: 'Set one entry of the metadata of a machine',
    scope: 'write',
    action: 'write',
    params: ByKey,
    headers: LeaseHeader,
    body: Type.Object({ value: Type.String(), updated_at: Type.Optional(Type.String()) }),
    status: 204,
    errors: { 403: notAllowed, 404: noMachine },
    wrongTypeStatus: 400,
    run: (call) => changeMetadata(call.ctx, keyOf(call), { [call.params.key]: call.body.value }),
  }),
  route({
    method: 'DELETE',
    path: `${base}/metadata/{key}`,
    id: 'removeMachineMetadataKey',
    tag: 'Machines',
    summary: 'Remove one entry of the metadata of a machine',
    scope: 'write',
    params: ByKey,
    headers: LeaseHeader,
    status: 204,
    errors: { 403: notAllowed, 404: noMachine },
    wrongTypeStatus: 400,
    run: (call) => changeMetadata(call.ctx, keyOf(call), { [call.params.key]: null }),
  }),
]
