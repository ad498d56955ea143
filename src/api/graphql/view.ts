import type { GraphQLFormattedError } from 'graphql'
import type { ShownSecret } from '../../actions/app/secret.ts'
import type { ResolvedImage } from '../../live/app/image.ts'
import type { Region } from '../../model/account/region.ts'
import { type Caller, callerEmail, type Token } from '../../model/account/token.ts'
import type { Ip } from '../../model/app/ip.ts'
import { definesApp, isInProgress, type Release } from '../../model/app/release.ts'
import type { BerthError } from '../../model/errors.ts'
import { toRfc3339 } from '../../model/time.ts'

/** Values by field. A function is called when its field is requested. */
export type GraphqlNode = Record<string, unknown>

export function connection(nodes: GraphqlNode[]): GraphqlNode {
  return { nodes, totalCount: nodes.length }
}

export function userNode(caller: Pick<Caller, 'tokenId' | 'kind'>): GraphqlNode {
  const email = callerEmail(caller)
  return { __typename: 'User', id: caller.tokenId, email, name: email, username: email, enablePaidHobby: false }
}

export function tokenNode(token: Token): GraphqlNode {
  return {
    id: token.id,
    name: token.name || token.kind,
    createdAt: toRfc3339(token.createdAt),
    expiresAt: token.expiresAt === null ? null : toRfc3339(token.expiresAt),
    user: userNode({ tokenId: token.id, kind: token.kind }),
  }
}

export function secretNode(secret: ShownSecret): GraphqlNode {
  const { name, digest, createdAt } = secret
  return { __typename: 'Secret', id: name, name, digest, createdAt: toRfc3339(createdAt) }
}

export function releaseNode(release: Release): GraphqlNode {
  return {
    __typename: 'Release',
    id: release.id,
    version: release.version,
    status: release.status,
    inProgress: isInProgress(release),
    stable: release.status === 'complete',
    reason: 'deploy',
    description: `Release ${release.version}`,
    imageRef: release.image,
    configDefinition: definesApp(release) ? release.definition : null,
    deploymentStrategy: release.strategy,
    evaluationId: '',
    user: { __typename: 'User', id: release.createdBy, email: release.createdBy, name: release.createdBy },
    createdAt: toRfc3339(release.createdAt),
    updatedAt: toRfc3339(release.updatedAt),
  }
}

export function imageNode(image: ResolvedImage): GraphqlNode {
  return {
    id: image.digest,
    ref: image.reference,
    digest: image.digest,
    compressedSize: image.packedBytes,
    compressedSizeFull: image.packedBytes,
    manifest: image.manifest,
  }
}

export function ipNode(ip: Ip): GraphqlNode {
  return {
    __typename: 'IPAddress',
    id: ip.ip,
    address: ip.ip,
    type: ip.type,
    region: ip.region,
    createdAt: toRfc3339(ip.createdAt),
    serviceName: ip.serviceName ?? '',
  }
}

export function regionNode(region: Region): GraphqlNode {
  return {
    code: region.code,
    name: region.name,
    latitude: region.latitude,
    longitude: region.longitude,
    geoRegion: region.area,
    gatewayAvailable: true,
    requiresPaidPlan: false,
    deprecated: false,
  }
}

export function refusalView(error: BerthError): GraphQLFormattedError {
  const { status } = error.details
  return {
    message: error.message,
    extensions: { code: error.code.toUpperCase(), ...(status === undefined ? {} : { status }) },
  }
}
