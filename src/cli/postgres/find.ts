import type { Command } from 'commander'
import type { PostgresCluster, PostgresClusterSummary, PostgresCredentials, PostgresDatabase } from '../api-types.ts'
import { request, requestIfPresent, type Session, segment } from '../client.ts'
import { type Cli, defaultOrg } from '../command.ts'
import { Failure, Misuse } from '../failure.ts'

export type Endpoints = NonNullable<PostgresCluster['private_endpoints']>
export type Endpoint = Endpoints['direct']

/** Answers of the Postgres operations wrap their result. */
export interface Data<T> {
  data: T
}

export interface InOrg {
  org: string
}

export const defaultDatabase = 'fly-db'
export const defaultUser = 'fly-user'

const idPattern = /^[a-z0-9]{16}$/

/** The argument that says which cluster, and the option that says where its name is looked up. */
export function takesCluster(command: Command): Command {
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

/** The path of the operations on the cluster that has this name or this id. */
export async function findCluster(cli: Cli, given: string, { org }: InOrg): Promise<string> {
  return `/v1/postgres/${segment(await findClusterId(cli.session(), given, org))}`
}

/** With which a user logs in. */
export async function getPassword(
  cli: Cli,
  path: string,
  given: string,
  { org, user }: InOrg & { user: string },
): Promise<string> {
  const credentials = `${path}/users/${segment(user)}/credentials`
  const found = await requestIfPresent<Data<PostgresCredentials>>(cli.session(), credentials)
  if (found) return found.data.password
  throw new Failure(
    `cluster ${given} has no user ${user}; choose one with --user, "berth postgres users list ${wordsFor(given, org)}" shows all`,
  )
}

/** What a command is told, and the organization if it would take another one. */
export function wordsFor(given: string, org: string): string {
  return org === defaultOrg ? given : `${given} --org ${org}`
}

/** At which a cluster is reached; `what` is possible then. */
export function getEndpoints({ name, status, endpoints, failure }: PostgresCluster, what: string): Endpoints {
  if (endpoints) return endpoints.primary
  if (failure !== undefined) throw new Failure(`cluster ${name} failed: ${failure}`)
  throw new Failure(`cluster ${name} is ${status}; ${what} once it is ready`)
}

/** Undefined for a database that the cluster has. */
export async function explainMissingDatabase(
  cli: Cli,
  path: string,
  given: string,
  { org, database }: InOrg & { database: string },
): Promise<string | undefined> {
  const { data } = await request<Data<PostgresDatabase[]>>(cli.session(), 'GET', `${path}/databases`)
  if (data.some(({ name }) => name === database)) return undefined
  return `cluster ${given} has no database ${database}; choose one with --database, "berth postgres databases list ${wordsFor(given, org)}" shows all`
}

async function findClusterId(session: Session, given: string, org: string): Promise<string> {
  const looksLikeId = idPattern.test(given)
  // An id is good in every organization, also for a token that may not see this one.
  const list = looksLikeId
    ? await requestIfPresent<Data<PostgresClusterSummary[]>>(session, listPath(org))
    : await listClusters(session, org)
  const found = list?.data.filter(({ id, name }) => id === given || name === given) ?? []
  if (found.length > 1) throw new Misuse(ambiguity(given, found))
  if (found[0]) return found[0].id
  if (looksLikeId) return given
  throw new Failure(`cluster ${given} not found in organization ${org}; "berth postgres list --org ${org}" shows all`)
}

/** Names are unique, so that one of the two has the id and the other the name. */
function ambiguity(given: string, found: PostgresClusterSummary[]): string {
  const byId = found.find(({ id }) => id === given)!
  const byName = found.find(({ id }) => id !== given)!
  return `"${given}" is the id of one cluster and the name of another; write ${byId.name} or ${byName.id}`
}
