// Records deployments as releases on the platform, through its GraphQL API.
import type { IpAssignmentList } from '../api-types.ts'
import { encodeSegment, request, type Session } from '../client.ts'
import { ApiError } from '../errors.ts'

export interface Release {
  id: string
  version: number
}

export interface NewRelease {
  app: string
  image: string
  strategy: 'ROLLING' | 'IMMEDIATE'
}

export async function createRelease(session: Session, { app, ...rest }: NewRelease): Promise<Release> {
  const query = `mutation($input: CreateReleaseInput!) { createRelease(input: $input) { release { id version } } }`
  const input = { appId: app, platformVersion: 'machines', ...rest }
  const answer = await ask<{ createRelease: { release: Release } }>(session, query, { input })
  return answer.createRelease.release
}

export async function endRelease(session: Session, { id }: Release, status: 'complete' | 'failed'): Promise<void> {
  const query = `mutation($input: UpdateReleaseInput!) { updateRelease(input: $input) { release { id } } }`
  await ask(session, query, { input: { releaseId: id, status } })
}

/** The public URL of an app; undefined while it has no public address. */
export async function findUrl(session: Session, app: string): Promise<string | undefined> {
  const { ips } = await request<IpAssignmentList>(session, 'GET', `/v1/apps/${encodeSegment(app)}/ip_assignments`)
  if (ips.every(({ type }) => type === 'private_v6')) return undefined
  const query = 'query($name: String!) { app(name: $name) { appUrl } }'
  return (await ask<{ app: { appUrl: string } }>(session, query, { name: app })).app.appUrl
}

async function ask<T>(session: Session, query: string, variables: object): Promise<T> {
  const answer = await request<{ data: T; errors?: { message: string }[] }>(session, 'POST', '/graphql', {
    query,
    variables,
  })
  if (answer.errors?.[0]) throw new ApiError(200, answer.errors[0].message, { error: answer.errors[0].message })
  return answer.data
}
