// Fields of existing clients that this platform cannot provide. A query that contains one is refused as a whole before it
// runs, whatever else it selects, so that none of its mutations leaves something behind.
import {
  type DocumentNode,
  type GraphQLFormattedError,
  type GraphQLSchema,
  TypeInfo,
  visit,
  visitWithTypeInfo,
} from 'graphql'
import { noBuilderReason, noPostgresAppReason } from '../../model/app/unsupported.ts'

const noAddOns =
  'this platform has no add-ons of third parties, such as Redis and object storage: run the program as an app, or use managed Postgres'
const noWireGuard =
  'this platform has no WireGuard tunnels into private networks: run commands with "machine exec", restart with "machine restart" and reach apps through the edge'
const noSsh = 'machines have no SSH access on this platform: run commands with "machine exec"'
const noEgress = 'this platform has no egress addresses: what machines send leaves by the address of the host'
const noUsers = 'this platform has no user accounts: create a token of the organization for each person instead'
const certificatesElsewhere =
  'certificates are not part of GraphQL on this platform: use /v1/apps/{app_name}/certificates'
const noReplaySources = 'requests cannot be replayed from other organizations on this platform'

/** Why a field is refused, by its type and its name. */
const reasons: Readonly<Record<string, string>> = {
  ...ofType('Queries', noAddOns, ['addOn', 'addOnPlans', 'addOnProvider']),
  ...ofType('Queries', noPostgresAppReason, ['postgresAttachments']),
  // Clients recognize these words and go on without a newer image.
  ...ofType('Queries', 'Unknown repository: this platform publishes no images of its own', [
    'latestImageDetails',
    'latestImageTag',
  ]),
  ...ofType('Mutations', noAddOns, [
    'createAddOn',
    'createExtensionTosAgreement',
    'deleteAddOn',
    'resetAddOnPassword',
    'updateAddOn',
  ]),
  ...ofType('Mutations', noBuilderReason, [
    'createBuild',
    'ensureDepotRemoteBuilder',
    'ensureMachineRemoteBuilder',
    'finishBuild',
  ]),
  ...ofType('Mutations', noWireGuard, [
    'addWireGuardPeer',
    'createDelegatedWireGuardToken',
    'deleteDelegatedWireGuardToken',
    'removeWireGuardPeer',
    'validateWireGuardPeers',
  ]),
  ...ofType('Mutations', noSsh, ['issueCertificate']),
  ...ofType('Mutations', noEgress, ['allocateEgressIpAddress', 'releaseEgressIpAddress']),
  ...ofType('Mutations', noUsers, ['createOrganizationInvitation', 'deleteOrganizationMembership']),
  ...ofType('Mutations', noPostgresAppReason, [
    'attachPostgresCluster',
    'detachPostgresCluster',
    'enablePostgresConsul',
  ]),
  ...ofType('Mutations', noReplaySources, ['addAllowedReplaySourceOrgs', 'removeAllowedReplaySourceOrgs']),
  ...ofType('Mutations', 'apps have no locks on this platform; machines have leases', ['lockApp', 'unlockApp']),
  ...ofType('Mutations', 'tokens do not end with a session on this platform: revoke the token instead', ['logOut']),
  ...ofType('Mutations', 'an app cannot be moved to another organization: create it there and copy its data', [
    'moveApp',
  ]),
  ...ofType('Mutations', 'apps have machines on this platform: use "scale count"', ['setVmCount']),
  ...ofType('Mutations', 'this platform sends nothing to a support service: run "berth doctor" on its host', [
    'createDoctorUrl',
  ]),
  ...ofType('Mutations', certificatesElsewhere, ['addCertificate', 'checkCertificate', 'deleteCertificate']),
  ...ofType(
    'Mutations',
    'organizations cannot be deleted on this platform: delete what is in them and revoke their tokens',
    ['deleteOrganization'],
  ),
  ...ofType('App', certificatesElsewhere, ['certificate', 'certificates']),
  ...ofType('Organization', noAddOns, ['extensionSsoLink']),
  ...ofType('Organization', noWireGuard, ['delegatedWireGuardTokens', 'wireGuardPeer', 'wireGuardPeers']),
  ...ofType('Organization', noSsh, ['loggedCertificates']),
  ...ofType('User', noAddOns, ['agreedToProviderTos']),
}

function ofType(type: string, reason: string, fields: string[]): Record<string, string> {
  return Object.fromEntries(fields.map((field) => [`${type}.${field}`, reason]))
}

/** Returns one error for each refused field of the document. */
export function findUnsupported(schema: GraphQLSchema, document: DocumentNode): GraphQLFormattedError[] {
  const found = new Map<string, string>()
  const types = new TypeInfo(schema)
  visit(
    document,
    visitWithTypeInfo(types, {
      Field({ name }) {
        const reason = reasons[`${types.getParentType()?.name}.${name.value}`]
        if (reason !== undefined) found.set(name.value, reason)
      },
    }),
  )
  return [...found.values()].map((message) => ({ message, extensions: { code: 'UNSUPPORTED' } }))
}
