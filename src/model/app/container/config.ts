// Containers: programs of different images that run in one machine and share its network and its limits.
import { type Static, Type } from 'typebox'
import { EnvFrom, Header, MachineFile, ProgramSecret, RestartPolicy, StopConfig, Words } from './program.ts'

export const maxContainers = 16

const Port = Type.Integer({ minimum: 1, maximum: 65_535 })
const Seconds = Type.Integer({ minimum: 0, maximum: 86_400 })
const Threshold = Type.Integer({ minimum: 0, maximum: 100 })

export const ContainerHealthcheck = Type.Object({
  name: Type.String({ description: 'Unique in the container.' }),
  interval: Type.Optional({ ...Seconds, description: 'Seconds between two runs; 15 when omitted.' }),
  timeout: Type.Optional({ ...Seconds, description: 'Seconds that one run may take; 5 when omitted.' }),
  grace_period: Type.Optional({
    ...Seconds,
    description: 'Seconds after the start of the container during which failures do not count; 10 when omitted.',
  }),
  success_threshold: Type.Optional({
    ...Threshold,
    description: 'Passes in a row that make it healthy; 1 when omitted.',
  }),
  failure_threshold: Type.Optional({
    ...Threshold,
    description: 'Failures in a row that make it unhealthy; 3 when omitted.',
  }),
  kind: Type.Optional(
    Type.Enum(['readiness', 'liveness'], {
      description: 'Both decide about `depends_on` and `unhealthy`. Requests follow the checks of services.',
    }),
  ),
  unhealthy: Type.Optional(
    Type.Enum(['stop'], { description: '`stop` stops an unhealthy container; its restart policy then applies.' }),
  ),
  http: Type.Optional(
    Type.Object({
      port: Port,
      method: Type.Optional(Type.String()),
      path: Type.Optional(Type.String()),
      headers: Type.Optional(Type.Array(Header)),
      scheme: Type.Optional(Type.Enum(['http', 'https'])),
      tls_skip_verify: Type.Optional(Type.Boolean()),
      tls_server_name: Type.Optional(Type.String()),
    }),
  ),
  tcp: Type.Optional(Type.Object({ port: Port })),
  exec: Type.Optional(Type.Object({ command: Words })),
})
export type ContainerHealthcheck = Static<typeof ContainerHealthcheck>

export const ContainerDependency = Type.Object({
  name: Type.String({ description: 'Another container of the machine.' }),
  condition: Type.Optional(
    Type.Enum(['exited_successfully', 'healthy', 'started'], { description: '`started` when omitted.' }),
  ),
})

export const MachineContainer = Type.Object({
  name: Type.String({ description: 'Unique in the machine.' }),
  image: Type.String({ description: '`[host/]repository[:tag|@digest]`.' }),
  exec: Type.Optional(Words),
  entrypoint: Type.Optional(Words),
  cmd: Type.Optional(Words),
  user: Type.Optional(Type.String()),
  env: Type.Optional(Type.Record(Type.String(), Type.String())),
  secrets: Type.Optional(
    Type.Array(ProgramSecret, { description: 'The secrets it gets; all secrets of the app when omitted.' }),
  ),
  env_from: Type.Optional(Type.Array(EnvFrom)),
  files: Type.Optional(Type.Array(MachineFile)),
  restart: Type.Optional({ ...RestartPolicy, description: "The machine's `restart` when omitted." }),
  stop: Type.Optional({ ...StopConfig, description: "The machine's `stop_config` when omitted." }),
  depends_on: Type.Optional(
    Type.Array(ContainerDependency, { description: 'It is started when all of these are fulfilled.' }),
  ),
  healthchecks: Type.Optional(Type.Array(ContainerHealthcheck)),
})
export type MachineContainer = Static<typeof MachineContainer>

export type ContainerCondition = 'exited_successfully' | 'healthy' | 'started'

/** The container that stands for the machine where only one can: the one called `app`, or else the first. */
export function mainContainer({ containers = [] }: { containers?: MachineContainer[] }): MachineContainer | undefined {
  return containers.find(({ name }) => name === 'app') ?? containers[0]
}

/** `pending`: not started yet, because it waits for others. `restarting`: it exited and will be started again. */
export const containerPhases = ['pending', 'starting', 'running', 'restarting', 'stopping', 'stopped'] as const
export type ContainerPhase = (typeof containerPhases)[number]

export interface ContainerState {
  name: string
  state: ContainerPhase
  /** Undefined until its health checks have decided. */
  health?: 'healthy' | 'unhealthy'
  /** Of its last exit. */
  exit_code?: number
  restart_count: number
}
