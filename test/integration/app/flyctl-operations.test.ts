// Every GraphQL operation that flyctl and its library send (August 2026), with all fields they select: each is answered, or
// refused with one sentence. A document has the union of the selections that all its callers make.

import { readFileSync } from 'node:fs'
import { buildSchema, parse, validate } from 'graphql'
import { describe, expect, test } from 'vitest'
import { findUnsupported } from '../../../src/api/graphql/unsupported.ts'
import { usePlatform } from '../../support/platform.ts'

const schema = buildSchema(readFileSync(new URL('../../../src/api/graphql/schema.graphql', import.meta.url), 'utf8'))

const organization = `id slug rawSlug name internalNumericId type viewerRole paidPlan billable billingStatus addOnSsoLink
  provisionsBetaExtensions remoteBuilderImage`
const appData = `id name deployed platformVersion cnameTarget secrets { name } organization { ${organization} }`
const addOn = `id name status errorMessage primaryRegion privateIp readRegions options metadata
  addOnPlan { displayName description } organization { id slug }`
const machines = `machines { nodes { id name config state region createdAt app { name } ips { nodes { family kind ip maskSize } }
  egressIpAddresses { nodes { id ip version region updatedAt } } host { id } } }`
const release = `id version createdAt description reason stable status imageRef evaluationId inProgress user { id email name }`
const appFull = `${appData} hostname status version appUrl network internalNumericId role { name } config { definition }
  currentRelease { evaluationId status inProgress version } imageDetails { registry repository tag digest version }
  ipAddresses { nodes { id address type createdAt region serviceName network { name organization { slug } } } } ${machines}`
const tokens = 'limitedAccessTokens { nodes { id name expiresAt revokedAt user { email } } }'

const answered: Record<string, string> = {
  'mutation allocateIpAddress': `($input: AllocateIPAddressInput!) { allocateIpAddress(input: $input) {
    app { sharedIpAddress } ipAddress { id address type region createdAt } } }`,
  'mutation createApp': `($input: CreateAppInput!) { createApp(input: $input) { app { ${appData} config { definition }
    regions { name code } } } }`,
  'mutation createLimitedAccessToken': `($name: String!, $organizationId: ID!, $profile: String!, $profileParams: JSON,
    $expiry: String!) { createLimitedAccessToken(input: { name: $name, organizationId: $organizationId, profile: $profile,
    profileParams: $profileParams, expiry: $expiry }) { limitedAccessToken { tokenHeader } } }`,
  'mutation createOrganization': `($input: CreateOrganizationInput!) { createOrganization(input: $input) {
    organization { id name slug type viewerRole } } }`,
  'mutation createRelease': '($input: CreateReleaseInput!) { createRelease(input: $input) { release { id version } } }',
  'mutation deleteApp': '($appId: ID!) { deleteApp(appId: $appId) { organization { id } } }',
  'mutation releaseIpAddress': `($input: ReleaseIPAddressInput!) { releaseIpAddress(input: $input) { clientMutationId } }`,
  'mutation setAllowAllCrossNetworkReplays': `($input: SetAllowAllCrossNetworkReplaysInput!) {
    setAllowAllCrossNetworkReplays(input: $input) { organization { id slug name allowAllCrossNetworkReplays } } }`,
  'mutation setSecrets': `($input: SetSecretsInput!) { setSecrets(input: $input) { release { ${release} } } }`,
  'mutation unsetSecrets': `($input: UnsetSecretsInput!) { unsetSecrets(input: $input) { release { ${release} } } }`,
  'mutation updateRelease': '($input: UpdateReleaseInput!) { updateRelease(input: $input) { release { id } } }',
  'query addOns': `($addOnType: AddOnType) { addOns(type: $addOnType) { nodes { ${addOn} } } }`,
  'query app': `($name: String!, $addOnType: AddOnType!, $imageRef: String!, $limit: Int!) { app(name: $name) { ${appFull}
    addOns(type: $addOnType) { nodes { ${addOn} } } allocations(showCompleted: false) { id region privateIP }
    currentLock { lockId expiration } currentReleaseUnprocessed { ${release} configDefinition }
    egressIpAddresses { nodes { id ip version region updatedAt } }
    hostIssues { nodes { internalId message createdAt updatedAt } }
    image(ref: $imageRef) { id digest ref compressedSize: compressedSizeFull manifest } ${tokens}
    releases: releasesUnprocessed(first: $limit) { nodes { ${release} } } secrets { name digest createdAt }
    services { description protocol internalPort ports { port handlers } } sharedIpAddress } }`,
  'query appNameAvailable': '($appName: String!) { appNameAvailable(name: $appName) }',
  'query apps': `($org: ID, $role: String, $after: String) { apps(type: "container", first: 200, after: $after,
    organizationId: $org, role: $role) { pageInfo { hasNextPage endCursor } nodes { ${appData} hostname network status
    currentRelease { createdAt status } } } }`,
  'query canPerformBluegreenDeployment': '($appName: String!) { canPerformBluegreenDeployment(name: $appName) }',
  'query machine': `($machineId: String!) { gqlmachine: machine(machineId: $machineId) { id name
    app { name organization { id slug } } } }`,
  'query nearestRegion': `{ a: nearestRegion { code name gatewayAvailable deprecated }
    b: nearestRegion(wireguardGateway: true) { code name gatewayAvailable } }`,
  'query organization': `($slug: String!, $addOnType: AddOnType) { organization(slug: $slug) { ${organization}
    addOns(type: $addOnType) { nodes { ${addOn} } } allowAllCrossNetworkReplays allowedReplaySourceOrgSlugs ${tokens}
    members { edges { cursor joinedAt role node { id name email } } } remoteBuilderApp { ${appFull} } } }`,
  'query organizations': `($admin: Boolean!) { organizations(admin: $admin) { nodes { ${organization} } } }`,
  'query platform': `{ platform { requestRegion regions { name code latitude longitude gatewayAvailable requiresPaidPlan
    deprecated } } }`,
  'query viewer': '{ viewer { __typename ... on User { id email enablePaidHobby } ... on Macaroon { email } } }',
  'query volume': `($id: ID!) { volume(id: $id) { ... on Volume { state app { name }
    snapshots { nodes { id size digest createdAt retentionDays } } } } }`,
}

/** What a self-hosted platform does not have. The selections do not matter: a refusal comes before they are read. */
const refused = [
  'mutation addAllowedReplaySourceOrgs',
  'mutation addCertificate',
  'mutation addWireGuardPeer',
  'mutation allocateEgressIpAddress',
  'mutation attachPostgresCluster',
  'mutation checkCertificate',
  'mutation createAddOn',
  'mutation createBuild',
  'mutation createDelegatedWireGuardToken',
  'mutation createDoctorUrl',
  'mutation createExtensionTosAgreement',
  'mutation createOrganizationInvitation',
  'mutation deleteAddOn',
  'mutation deleteCertificate',
  'mutation deleteDelegatedWireGuardToken',
  'mutation deleteOrganization',
  'mutation deleteOrganizationMembership',
  'mutation detachPostgresCluster',
  'mutation enablePostgresConsul',
  'mutation ensureDepotRemoteBuilder',
  'mutation ensureMachineRemoteBuilder',
  'mutation finishBuild',
  'mutation issueCertificate',
  'mutation lockApp',
  'mutation logOut',
  'mutation moveApp',
  'mutation releaseEgressIpAddress',
  'mutation removeAllowedReplaySourceOrgs',
  'mutation removeWireGuardPeer',
  'mutation resetAddOnPassword',
  'mutation setVmCount',
  'mutation unlockApp',
  'mutation updateAddOn',
  'mutation validateWireGuardPeers',
  'query addOn',
  'query addOnPlans',
  'query addOnProvider',
  'query app certificates',
  'query latestImageDetails',
  'query latestImageTag',
  'query organization delegatedWireGuardTokens',
  'query organization extensionSsoLink',
  'query organization loggedCertificates',
  'query organization wireGuardPeer',
  'query organization wireGuardPeers',
  'query postgresAttachments',
  'query viewer agreedToProviderTos',
]

const types: Record<string, string> = { app: 'App', organization: 'Organization', viewer: 'User' }

/** `query organization wireGuardPeers` → a document with a variable of a type that the schema does not know. */
function documentOf(operation: string): string {
  const [kind, root, inner] = operation.split(' ')
  const selection = inner ? `{ ... on ${types[root!]} { ${inner} { nodes { id } } } }` : '{ id }'
  return `${kind} ($input: UnknownInput!) { ${root}(input: $input) ${selection} }`
}

describe('an operation of flyctl', () => {
  test.each(Object.entries(answered))('%s has only fields that exist', (operation, text) => {
    const document = parse(`${operation.split(' ')[0]} ${text}`)
    expect(validate(schema, document)).toEqual([])
    expect(findUnsupported(schema, document)).toEqual([])
  })

  test.each(refused)('%s is refused with one sentence', (operation) => {
    const errors = findUnsupported(schema, parse(documentOf(operation)))
    expect(errors).toEqual([
      { message: expect.stringMatching(/^\S.* .*[a-z)"]$/), extensions: { code: 'UNSUPPORTED' } },
    ])
  })
})

describe('a refused operation', () => {
  const platform = usePlatform()

  test('says why instead of naming unknown fields, and runs nothing else of the document', async () => {
    const query = `mutation ($input: CreateAddOnInput!, $app: CreateAppInput!) { createApp(input: $app) { app { id } }
      createAddOn(input: $input) { addOn { name publicUrl } } }`
    const variables = { input: { name: 'cache' }, app: { name: 'left', organizationId: 'personal' } }
    const { status, body } = await platform.call('POST', '/graphql', { body: { query, variables } })
    expect(status).toBe(200)
    expect(body).toEqual({
      errors: [
        { message: expect.stringContaining('no add-ons of third parties'), extensions: { code: 'UNSUPPORTED' } },
      ],
    })
    expect((await platform.call('GET', '/v1/apps/left')).status).toBe(404)
  })

  test.each([
    ['postgres_cluster', 'use managed Postgres'],
    ['remote-docker-builder', 'does not build images'],
    ['constructor', 'apps have no roles'],
  ])('leaves no app behind that %s needs', async (role, reason) => {
    const body = { name: 'left', org_slug: 'personal', network: '', app_role_id: role }
    const made = await platform.call('POST', '/v1/apps?wait=true', { body })
    expect(made).toMatchObject({ status: 422, body: { error: expect.stringContaining(reason) } })
    const query = 'mutation ($input: CreateAppInput!) { createApp(input: $input) { app { id } } }'
    const variables = { input: { organizationId: 'personal', name: 'left', appRoleId: role } }
    const { body: answer } = await platform.call('POST', '/graphql', { body: { query, variables } })
    expect(answer.errors[0].message).toContain(reason)
    expect((await platform.call('GET', '/v1/apps/left')).status).toBe(404)
  })

  test('about images is worded so that clients go on', async () => {
    const query = 'query ($image: String!) { latestImageDetails(image: $image) { tag } }'
    const { body } = await platform.call('POST', '/graphql', { body: { query, variables: { image: 'nginx' } } })
    expect(body.errors[0].message).toContain('Unknown repository')
  })

  test('needs a token like any other', async () => {
    const body = { query: 'mutation { logOut(input: {}) { ok } }' }
    expect((await platform.call('POST', '/graphql', { body, token: null })).status).toBe(401)
  })
})
