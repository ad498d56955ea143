import type { Command } from 'commander'
import type { PostgresCluster, PostgresClusterSummary, PostgresCredentials, PostgresDatabase } from '../api-types.ts'
import { encodeSegment, request, requestIfPresent, type Session } from '../client.ts'
import { type Cli, defaultOrg } from '../command.ts'
import { CommandError, UsageError } from '../errors.ts'

export type Endpoints = NonNullable<PostgresCluster['private_endpoints']>
export type Endpoint = Endpoints['direct']

/** Answers of the Postgres operations wrap their result. */
export interface Data<T> {
  data: T
}

export interface OrgOptions {
  org: string
}

export const defaultDatabase = 'fly-db'
export const defaultUser = 'fly-user'

const idPattern = /^[a-z0-9]{16}$/

/** Adds the cluster argument and the option for the organization in which the name is looked up. */
export function withClusterArgument(command: Command): Command {
  return command
    .argument('<cluster>', 'the name or the id of the cluster')
    .option('--org <slug>', 'the organization in which the name is looked up', defaultOrg)
}

export function listClusters(
  session: Session,
  org: string,
  includeDeleted = false,
): Promise<Data<PostgresClusterSummary[]>> {
  return request(session, 'GET', listPath(org, includeDeleted))
}

function listPath(org: string, includeDeleted = false): string {
  return `/v1/postgres?${new URLSearchParams({ org_slug: org, ...(includeDeleted ? { include_deleted: 'true' } : {}) })}`
}

/** Returns the API path of the cluster with this name or id. */
export async function findCluster(cli: Cli, nameOrId: string, { org }: OrgOptions): Promise<string> {
  return `/v1/postgres/${encodeSegment(await findClusterId(cli.session(), nameOrId, org))}`
}

export async function getPassword(
  cli: Cli,
  path: string,
  nameOrId: string,
  { org, user }: OrgOptions & { user: string },
): Promise<string> {
  const credentials = `${path}/users/${encodeSegment(user)}/credentials`
  const found = await requestIfPresent<Data<PostgresCredentials>>(cli.session(), credentials)
  if (found) return found.data.password
  throw new CommandError(
    `cluster ${nameOrId} has no user ${user}; choose one with --user, "berth postgres users list ${clusterArguments(nameOrId, org)}" shows all`,
  )
}

/** The arguments that select this cluster in a command, for hints. */
export function clusterArguments(nameOrId: string, org: string): string {
  return org === defaultOrg ? nameOrId : `${nameOrId} --org ${org}`
}

/** Throws when the cluster has no endpoints yet; `what` completes the sentence about what needs them. */
export function getEndpoints({ name, status, endpoints, failure }: PostgresCluster, what: string): Endpoints {
  if (endpoints) return endpoints.primary
  if (failure !== undefined) throw new CommandError(`cluster ${name} failed: ${failure}`)
  throw new CommandError(`cluster ${name} is ${status}; ${what} once it is ready`)
}

/** Returns an error message when the cluster does not have the database, and undefined when it does. */
export async function missingDatabaseMessage(
  cli: Cli,
  path: string,
  nameOrId: string,
  { org, database }: OrgOptions & { database: string },
): Promise<string | undefined> {
  const { data } = await request<Data<PostgresDatabase[]>>(cli.session(), 'GET', `${path}/databases`)
  if (data.some(({ name }) => name === database)) return undefined
  return `cluster ${nameOrId} has no database ${database}; choose one with --database, "berth postgres databases list ${clusterArguments(nameOrId, org)}" shows all`
}

async function findClusterId(session: Session, nameOrId: string, org: string): Promise<string> {
  const looksLikeId = idPattern.test(nameOrId)
  // An id works in every organization, even if the token may not list the clusters of this one.
  const list = looksLikeId
    ? await requestIfPresent<Data<PostgresClusterSummary[]>>(session, listPath(org))
    : await listClusters(session, org)
  const found = list?.data.filter(({ id, name }) => id === nameOrId || name === nameOrId) ?? []
  if (found.length > 1) throw new UsageError(ambiguityMessage(nameOrId, found))
  if (found[0]) return found[0].id
  if (looksLikeId) return nameOrId
  throw new CommandError(
    `cluster ${nameOrId} not found in organization ${org}; "berth postgres list --org ${org}" shows all`,
  )
}

/** Names are unique, so one of the two clusters has the id and the other the name. */
function ambiguityMessage(nameOrId: string, found: PostgresClusterSummary[]): string {
  const byId = found.find(({ id }) => id === nameOrId)!
  const byName = found.find(({ id }) => id !== nameOrId)!
  return `"${nameOrId}" is the id of one cluster and the name of another; write ${byId.name} or ${byName.id}`
}
