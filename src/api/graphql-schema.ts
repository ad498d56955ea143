import { buildSchema, type GraphQLScalarType, type GraphQLSchema } from 'graphql'

// What third-party clients ask for, and no more. Names and types follow the interface they were written for; most
// fields may be null, so that one thing that cannot be told does not take the rest of an answer with it.
const text = /* GraphQL */ `
  schema {
    query: Queries
    mutation: Mutations
  }

  "Any JSON value."
  scalar JSON
  "A whole number as decimal digits in a string, because it may be larger than clients can hold."
  scalar BigInt
  "A time as RFC 3339 writes it, in UTC."
  scalar ISO8601DateTime
  "The kind of an extension by a third party. There are none here, so that every kind has an empty list."
  scalar AddOnType

  type Queries {
    "Who asks: the token of the request."
    viewer: Principal!
    currentUser: User!
    "By its slug or its id."
    organization(id: ID, slug: String): Organization
    "Those the token may see."
    organizations(admin: Boolean, after: String, first: Int, type: OrganizationType): OrganizationConnection!
    "By its name, which is its id too."
    app(name: String): App
    "Ordered by organization and name."
    apps(active: Boolean, after: String, first: Int, organizationId: ID, role: String, type: String): AppConnection!
    platform: Platform!
    nearestRegion: Region
    "An organization by its id or an app by its name."
    node(id: ID!): Node
  }

  interface Node {
    id: ID!
  }

  interface Principal {
    id: ID
    email: String
    name: String
    username: String
    "Those the token may see; null for other tokens than the one that asks."
    organizations: OrganizationConnection
  }

  type User implements Node & Principal {
    id: ID!
    email: String
    name: String
    username: String
    "Those the token may see; null for other tokens than the one that asks."
    organizations: OrganizationConnection
    enablePaidHobby: Boolean
    avatarUrl: String
  }

  type Macaroon implements Principal {
    id: ID
    email: String
    name: String
    username: String
    "Those the token may see; null for other tokens than the one that asks."
    organizations: OrganizationConnection
  }

  enum OrganizationType {
    PERSONAL
    SHARED
  }

  enum BillingStatus {
    CURRENT
  }

  type PageInfo {
    hasNextPage: Boolean!
    hasPreviousPage: Boolean!
    startCursor: String
    endCursor: String
  }

  type Organization implements Node {
    id: ID!
    internalNumericId: BigInt
    slug: String
    rawSlug: String
    name: String
    type: OrganizationType
    "admin, or member where the token may only read."
    viewerRole: String
    paidPlan: Boolean
    billable: Boolean
    billingStatus: BillingStatus
    isCreditCardSaved: Boolean
    provisionsBetaExtensions: Boolean
    addOnSsoLink: String
    remoteBuilderImage: String
    remoteBuilderApp: App
    addOns(type: AddOnType, first: Int, after: String): AddOnConnection!
    limitedAccessTokens(first: Int, after: String): LimitedAccessTokenConnection!
    members(first: Int, after: String): OrganizationMemberConnection!
    apps(after: String, first: Int): AppConnection!
  }

  type OrganizationConnection {
    nodes: [Organization]
    edges: [OrganizationEdge]
    pageInfo: PageInfo!
    totalCount: Int
  }

  type OrganizationEdge {
    cursor: String
    node: Organization
  }

  type OrganizationMemberConnection {
    edges: [OrganizationMemberEdge]
    nodes: [User]
    totalCount: Int
  }

  type OrganizationMemberEdge {
    cursor: String
    node: User
    role: String
    joinedAt: ISO8601DateTime
  }

  type AddOn {
    id: ID!
    name: String
    status: String
    errorMessage: String
    primaryRegion: String
  }

  type AddOnConnection {
    nodes: [AddOn]
    totalCount: Int
  }

  type LimitedAccessToken {
    id: ID!
    name: String
    createdAt: ISO8601DateTime
    expiresAt: ISO8601DateTime
    revokedAt: ISO8601DateTime
    user: User
  }

  type LimitedAccessTokenConnection {
    nodes: [LimitedAccessToken]
    totalCount: Int
  }

  type App implements Node {
    "The name, which no other app has."
    id: ID!
    internalNumericId: Int
    name: String
    "pending, deployed or suspended."
    status: String
    deployed: Boolean
    hostname: String
    appUrl: String
    cnameTarget: String
    "The version of its newest release; 0 before the first."
    version: Int
    platformVersion: String
    network: String
    organization: Organization
    role: AppRole
    config: AppConfig
    services: [Service!]
    regions: [Region!]
    ipAddresses(first: Int, after: String): IPAddressConnection!
    sharedIpAddress: String
    egressIpAddresses(first: Int, after: String): EgressIPAddressConnection!
    secrets: [Secret!]
    machines(active: Boolean, after: String, first: Int, state: String): MachineConnection!
    "Looks the image up in its registry."
    image(ref: String!): Image
    imageDetails: ImageVersion
    currentRelease: Release
    currentReleaseUnprocessed: Release
    releases(first: Int, after: String): ReleaseConnection!
    releasesUnprocessed(first: Int, after: String): ReleaseConnection!
    addOns(type: AddOnType, first: Int, after: String): AddOnConnection!
    limitedAccessTokens(first: Int, after: String): LimitedAccessTokenConnection!
    hostIssues(first: Int, after: String): IssueConnection!
  }

  type AppConnection {
    nodes: [App]
    edges: [AppEdge]
    pageInfo: PageInfo!
    totalCount: Int
  }

  type AppEdge {
    cursor: String
    node: App
  }

  interface AppRole {
    id: ID!
    name: String
  }

  type AppConfig {
    definition: JSON
  }

  type Service {
    description: String
    protocol: String
    internalPort: Int
    ports: [ServicePort!]
  }

  type ServicePort {
    port: Int
    startPort: Int
    endPort: Int
    handlers: [String!]
  }

  enum IPAddressType {
    v4
    v6
    private_v6
    shared_v4
  }

  type IPAddress implements Node {
    id: ID!
    address: String
    type: IPAddressType
    region: String
    createdAt: ISO8601DateTime
    network: Network
    serviceName: String
  }

  type IPAddressConnection {
    nodes: [IPAddress]
    totalCount: Int
  }

  type Network {
    name: String
    organization: Organization
  }

  type EgressIPAddress {
    id: ID!
    ip: String
    version: Int
    region: String
    updatedAt: ISO8601DateTime
  }

  type EgressIPAddressConnection {
    nodes: [EgressIPAddress]
    totalCount: Int
  }

  type Secret implements Node {
    id: ID!
    name: String
    digest: String
    createdAt: ISO8601DateTime
    user: User
  }

  type Machine implements Node {
    id: ID!
    name: String
    state: String
    region: String
    instanceId: String
    config: JSON
    createdAt: ISO8601DateTime
    updatedAt: ISO8601DateTime
    app: App
    host: Host
    ips(first: Int, after: String): MachineIPConnection!
    egressIpAddresses(first: Int, after: String): EgressIPAddressConnection!
  }

  type MachineConnection {
    nodes: [Machine]
    totalCount: Int
  }

  type MachineIP {
    id: ID
    family: String
    kind: String
    ip: String
    maskSize: Int
  }

  type MachineIPConnection {
    nodes: [MachineIP]
    totalCount: Int
  }

  type Host {
    id: ID!
  }

  type Image {
    id: ID!
    ref: String
    digest: String
    "Of all its layers as they are fetched."
    compressedSize: BigInt
    compressedSizeFull: BigInt
    manifest: JSON
  }

  type ImageVersion {
    registry: String
    repository: String
    tag: String
    version: String
    digest: String
  }

  enum DeploymentStrategy {
    BLUEGREEN
    CANARY
    IMMEDIATE
    ROLLING
    ROLLING_ONE
    SIMPLE
  }

  type Release implements Node {
    id: ID!
    version: Int
    status: String
    inProgress: Boolean
    stable: Boolean
    reason: String
    description: String
    imageRef: String
    deploymentStrategy: DeploymentStrategy
    evaluationId: String
    user: User
    createdAt: ISO8601DateTime
    updatedAt: ISO8601DateTime
  }

  type ReleaseConnection {
    nodes: [Release]
    totalCount: Int
  }

  type Issue {
    id: ID!
    message: String
    createdAt: ISO8601DateTime
    updatedAt: ISO8601DateTime
  }

  type IssueConnection {
    nodes: [Issue]
    totalCount: Int
  }

  type Platform {
    "The region that is nearest to who asks."
    requestRegion: String
    regions: [Region!]
  }

  type Region {
    code: String
    name: String
    latitude: Float
    longitude: Float
    geoRegion: String
    gatewayAvailable: Boolean
    requiresPaidPlan: Boolean
    deprecated: Boolean
  }

  type Mutations {
    createApp(input: CreateAppInput!): CreateAppPayload
    deleteApp(appId: ID, force: Boolean, input: DeleteAppInput): DeleteAppPayload
    "All or none of them. Machines see the change when they are next updated."
    setSecrets(input: SetSecretsInput!): SetSecretsPayload
    unsetSecrets(input: UnsetSecretsInput!): UnsetSecretsPayload
    allocateIpAddress(input: AllocateIPAddressInput!): AllocateIPAddressPayload
    releaseIpAddress(input: ReleaseIPAddressInput!): ReleaseIPAddressPayload
    createRelease(input: CreateReleaseInput!): CreateReleasePayload
    updateRelease(input: UpdateReleaseInput!): UpdateReleasePayload
  }

  input CreateAppInput {
    clientMutationId: String
    "The id or the slug of an organization."
    organizationId: ID!
    name: String
    network: String
    enableSubdomains: Boolean
    appRoleId: ID
    preferredRegion: String
    machines: Boolean
    runtime: String
    heroku: Boolean
  }

  type CreateAppPayload {
    clientMutationId: String
    app: App
  }

  input DeleteAppInput {
    clientMutationId: String
    appId: ID!
    force: Boolean
  }

  type DeleteAppPayload {
    clientMutationId: String
    organization: Organization
  }

  input SecretInput {
    key: String!
    value: String!
  }

  input SetSecretsInput {
    clientMutationId: String
    appId: ID!
    secrets: [SecretInput!]!
    "Also remove those that are not named."
    replaceAll: Boolean
  }

  type SetSecretsPayload {
    clientMutationId: String
    app: App
    "Null: setting secrets makes no release."
    release: Release
  }

  input UnsetSecretsInput {
    clientMutationId: String
    appId: ID!
    keys: [String!]!
  }

  type UnsetSecretsPayload {
    clientMutationId: String
    app: App
    "Null: removing secrets makes no release."
    release: Release
  }

  input AllocateIPAddressInput {
    clientMutationId: String
    appId: ID!
    type: IPAddressType!
    region: String
    "The id or the slug of the organization whose network a private_v6 address is in; the app's own when omitted."
    organizationId: ID
    network: String
    serviceName: String
  }

  type AllocateIPAddressPayload {
    clientMutationId: String
    app: App
    ipAddress: IPAddress
  }

  input ReleaseIPAddressInput {
    clientMutationId: String
    appId: ID
    ip: String
    "The id of an address of the app, in place of ip."
    ipAddressId: ID
  }

  type ReleaseIPAddressPayload {
    clientMutationId: String
    app: App
  }

  input CreateReleaseInput {
    clientMutationId: String
    appId: ID!
    image: String!
    platformVersion: String
    strategy: DeploymentStrategy
    definition: JSON
    buildId: ID
  }

  type CreateReleasePayload {
    clientMutationId: String
    app: App
    release: Release
  }

  input UpdateReleaseInput {
    clientMutationId: String
    releaseId: ID!
    status: String!
    metadata: JSON
  }

  type UpdateReleasePayload {
    clientMutationId: String
    release: Release
  }
`

let built: GraphQLSchema | undefined

/** Built when it is first asked for. */
export function graphqlSchema(): GraphQLSchema {
  if (built) return built
  const schema = buildSchema(text)
  ;(schema.getType('BigInt') as GraphQLScalarType).serialize = String
  built = schema
  return schema
}
