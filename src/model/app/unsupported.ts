/** Why builders are refused. */
export const noBuilderReason =
  'this platform does not build images: build it elsewhere, push it to a registry and deploy it with --image'

/** Why apps that are PostgreSQL clusters are refused. */
export const noPostgresAppReason = 'this platform has no Postgres apps: use managed Postgres (mpg) instead'

/** Clients give a role to apps whose machines they set up with images of their vendor. */
const appRoles: ReadonlyMap<string, string> = new Map([
  ['postgres_cluster', noPostgresAppReason],
  ['remote-docker-builder', noBuilderReason],
])

export function appRoleReason(role: string): string {
  return appRoles.get(role) ?? 'apps have no roles on this platform: leave out app_role_id'
}
