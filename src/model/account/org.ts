import { type Static, Type } from 'typebox'
import type { Micros } from '../time.ts'

export const slugPattern = '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'

/** The slug of the organization that exists from the start. */
export const firstOrg = 'personal'

export interface Org {
  id: string
  numericId: number
  slug: string
  name: string
  /** Whether `fly-replay` may cross private networks of the organization. */
  crossNetworkReplays: boolean
  createdAt: Micros
}

export const OrganizationReference = Type.Object(
  { name: Type.String(), slug: Type.String(), internal_numeric_id: Type.Optional(Type.Integer()) },
  { title: 'OrganizationReference', description: 'The organization a resource belongs to.' },
)

export const CreateOrg = Type.Object({
  slug: Type.String({
    pattern: slugPattern,
    description: 'Unique; lowercase letters, digits and dashes, at most 63 characters.',
    refusal: 'slug must be 1 to 63 lowercase letters, digits and dashes, not starting or ending with a dash',
  }),
  name: Type.Optional(
    Type.String({ minLength: 1, maxLength: 100, description: 'Display name; the slug when omitted.' }),
  ),
})
export type CreateOrg = Static<typeof CreateOrg>

export const UpdateOrg = Type.Object({
  cross_network_replays: Type.Boolean({
    description: 'Whether `fly-replay` may replay requests to apps in other private networks of the organization.',
  }),
})
export type UpdateOrg = Static<typeof UpdateOrg>
