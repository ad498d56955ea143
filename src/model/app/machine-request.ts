// What callers send about machines.
import { type Static, Type } from 'typebox'
import { MachineConfig } from './machine-config.ts'

export const CreateMachine = Type.Object(
  {
    config: MachineConfig,
    name: Type.Optional(Type.String({ description: 'Unique inside the app; made up when omitted.' })),
    region: Type.Optional(
      Type.String({ description: 'A code, or several with commas of which the first that fits is taken.' }),
    ),
    skip_launch: Type.Optional(Type.Boolean({ description: 'Leave it as it is instead of starting it.' })),
    skip_service_registration: Type.Optional(Type.Boolean({ description: 'Cordoned: the edge leads nothing to it.' })),
    skip_secrets: Type.Optional(Type.Boolean({ description: 'Without the secrets of the app.' })),
    min_secrets_version: Type.Optional(
      Type.Union([Type.Integer({ minimum: 0 }), Type.Null()], {
        description: 'Refuse unless the secrets of the app are at this version or a later one.',
      }),
    ),
    lease_ttl: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: 86_400,
        description: 'Seconds to lease it for; the answer has the `nonce`.',
      }),
    ),
  },
  { title: 'CreateMachine', examples: [{ config: { image: 'docker.io/library/nginx:1.29' } }] },
)
export type CreateMachine = Static<typeof CreateMachine>

export const UpdateMachine = Type.Object(
  {
    ...CreateMachine.properties,
    current_version: Type.Optional(Type.String({ description: 'Refuse unless the machine has this version now.' })),
  },
  { title: 'UpdateMachine', examples: [{ config: { image: 'docker.io/library/nginx:1.29' } }] },
)
export type UpdateMachine = Static<typeof UpdateMachine>

export interface MachineQuery {
  include_deleted?: boolean
  region?: string
  state?: string
}
