// Schemas of what a program is started with, for the program of a machine and for those of containers.
import { type Static, Type } from 'typebox'

export const Words = Type.Array(Type.String())

/** A Go duration such as `15s`, or nanoseconds. */
export const Duration = Type.Union([Type.String(), Type.Integer({ minimum: 0 })])

export const Header = Type.Object({ name: Type.String(), values: Words })

export const MachineFile = Type.Object({
  guest_path: Type.String(),
  raw_value: Type.Optional(Type.String()),
  secret_name: Type.Optional(Type.String()),
  mode: Type.Optional(Type.Integer({ minimum: 0, maximum: 0o7777 })),
})
export type MachineFile = Static<typeof MachineFile>

export const RestartPolicy = Type.Object({
  policy: Type.Optional(Type.Enum(['no', 'always', 'on-failure', 'spot-price'])),
  max_retries: Type.Optional(Type.Integer({ minimum: 0 })),
})
export type RestartPolicy = Static<typeof RestartPolicy>

export const StopConfig = Type.Object({ signal: Type.Optional(Type.String()), timeout: Type.Optional(Duration) })
export type StopConfig = Static<typeof StopConfig>

/** A secret of the app and the variable that gets its value. */
export const ProgramSecret = Type.Object({ env_var: Type.String(), name: Type.Optional(Type.String()) })

/** A field of the machine and the variable that gets its value. */
export const EnvFrom = Type.Object({
  env_var: Type.String(),
  field_ref: Type.Enum(['id', 'version', 'app_name', 'private_ip', 'region', 'image']),
})
