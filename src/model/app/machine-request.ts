// Request bodies of the machine operations.
import { type Static, Type } from 'typebox'
import { MachineConfig } from './machine-config.ts'

export const CreateMachine = Type.Object(
  {
    config: MachineConfig,
    name: Type.Optional(Type.String({ description: 'Unique in the app; generated when omitted.' })),
    region: Type.Optional(
      Type.String({
        description: 'A region code, or several separated by commas, of which the first that matches is used.',
      }),
    ),
    skip_launch: Type.Optional(Type.Boolean({ description: 'Do not start the machine; it is then `stopped`.' })),
    skip_service_registration: Type.Optional(
      Type.Boolean({ description: 'Create it cordoned: the edge routes no requests to it.' }),
    ),
    skip_secrets: Type.Optional(Type.Boolean({ description: 'Do not pass the secrets of the app to the machine.' })),
    min_secrets_version: Type.Optional(
      Type.Union([Type.Integer({ minimum: 0 }), Type.Null()], {
        description: 'Fail unless the secrets of the app have at least this version.',
      }),
    ),
    lease_ttl: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: 86_400,
        description: 'Lease the machine for this many seconds; the response contains the `nonce`.',
      }),
    ),
  },
  { title: 'CreateMachine', examples: [{ config: { image: 'docker.io/library/nginx:1.29' } }] },
)
export type CreateMachine = Static<typeof CreateMachine>

export const UpdateMachine = Type.Object(
  {
    ...CreateMachine.properties,
    current_version: Type.Optional(
      Type.String({ description: 'Fail unless this is the current version of the machine.' }),
    ),
  },
  { title: 'UpdateMachine', examples: [{ config: { image: 'docker.io/library/nginx:1.29' } }] },
)
export type UpdateMachine = Static<typeof UpdateMachine>
