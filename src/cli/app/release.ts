// Reads and records deployments as releases of the platform, through its GraphQL API.
import { request, type Session } from '../client.ts'
import { ApiError, CommandError } from '../errors.ts'

export type Strategy = 'rolling' | 'immediate' | 'canary' | 'bluegreen'
export const strategies: readonly Strategy[] = ['rolling', 'immediate', 'canary', 'bluegreen']

export interface Release {
  id: string
  version: number
}

export interface ReleaseDetails extends Release {
  status: string
  imageRef: string
  deploymentStrategy: string
  user: { email: string } | null
  createdAt: string
}

export interface NewRelease {
  app: string
  image: string
  strategy: Strategy
}

export async function createRelease(session: Session, { app, image, strategy }: NewRelease): Promise<Release> {
  const query = `mutation($input: CreateReleaseInput!) { createRelease(input: $input) { release { id version } } }`
  const input = { appId: app, platformVersion: 'machines', image, strategy: strategy.toUpperCase() }
  const answer = await askGraphql<{ createRelease: { release: Release } }>(session, query, { input })
  return answer.createRelease.release
}

export async function endRelease(session: Session, { id }: Release, status: 'complete' | 'failed'): Promise<void> {
  const query = `mutation($input: UpdateReleaseInput!) { updateRelease(input: $input) { release { id } } }`
  await askGraphql(session, query, { input: { releaseId: id, status } })
}

const maxReleases = 100 // the platform keeps as many per app

/** Newest first. */
export async function listReleases(session: Session, app: string): Promise<ReleaseDetails[]> {
  const query = `query($name: String!, $first: Int) { app(name: $name) { releases(first: $first) { nodes {
    id version status imageRef deploymentStrategy user { email } createdAt } } } }`
  type Answer = { app: { releases: { nodes: ReleaseDetails[] } } | null }
  const { app: found } = await askGraphql<Answer>(session, query, { name: app, first: maxReleases })
  if (!found) throw new CommandError(`there is no app ${app}`)
  return found.releases.nodes
}

/** Metadata by which a machine names the release that it runs. */
export function releaseMetadata(group: string, { id, version }: Release): Record<string, string> {
  return {
    fly_platform_version: 'v2',
    fly_process_group: group,
    fly_release_id: id,
    fly_release_version: String(version),
  }
}

export async function askGraphql<T>(session: Session, query: string, variables: object): Promise<T> {
  const answer = await request<{ data: T; errors?: { message: string }[] }>(session, 'POST', '/graphql', {
    query,
    variables,
  })
  if (answer.errors?.[0]) throw new ApiError(200, answer.errors[0].message, { error: answer.errors[0].message })
  return answer.data
}
