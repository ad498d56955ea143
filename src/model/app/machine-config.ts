import { type Static, Type } from 'typebox'
import { MachineContainer } from './container/config.ts'
import {
  Duration,
  EnvFrom,
  Header,
  MachineFile,
  ProgramSecret,
  RestartPolicy,
  StopConfig,
  Words,
} from './container/program.ts'

const Text = Type.String()

export const MachineCheck = Type.Object({
  type: Type.Optional(Type.Enum(['tcp', 'http', 'exec'])),
  port: Type.Optional(Type.Integer({ minimum: 1, maximum: 65_535 })),
  kind: Type.Optional(Type.Enum(['informational', 'readiness'])),
  interval: Type.Optional(Duration),
  timeout: Type.Optional(Duration),
  grace_period: Type.Optional(Duration),
  method: Type.Optional(Text),
  path: Type.Optional(Text),
  protocol: Type.Optional(Type.Enum(['http', 'https'])),
  tls_skip_verify: Type.Optional(Type.Boolean()),
  tls_server_name: Type.Optional(Text),
  headers: Type.Optional(Type.Array(Header)),
  command: Type.Optional(Words),
})
export type MachineCheck = Static<typeof MachineCheck>

const weekSeconds = 604_800

export const ReplayCacheRule = Type.Object({
  path_prefix: Type.String({ description: '`/path` or `host/path`: requests to this path and below it.' }),
  ttl_seconds: Type.Integer({ minimum: 10, description: 'How long a replay is cached; at most a day.' }),
  type: Type.Enum(['cookie', 'header']),
  name: Type.String({ description: 'The cookie or header whose value is the cache key.' }),
  allow_bypass: Type.Optional(
    Type.Boolean({ description: 'Clients may bypass the cache with `fly-replay-cache-control: skip`.' }),
  ),
})
export type ReplayCacheRule = Static<typeof ReplayCacheRule>

export const MachinePort = Type.Object({
  port: Type.Optional(Type.Integer({ minimum: 1, maximum: 65_535 })),
  start_port: Type.Optional(Type.Integer({ minimum: 1, maximum: 65_535 })),
  end_port: Type.Optional(Type.Integer({ minimum: 1, maximum: 65_535 })),
  handlers: Type.Optional(Type.Array(Type.Enum(['http', 'tls', 'tcp', 'pg_tls', 'proxy_proto', 'edge_http']))),
  force_https: Type.Optional(Type.Boolean()),
  http_options: Type.Optional(
    Type.Object({
      compress: Type.Optional(Type.Boolean()),
      h2_backend: Type.Optional(Type.Boolean()),
      idle_timeout: Type.Optional(
        Type.Integer({
          minimum: 1,
          maximum: weekSeconds,
          description: 'Seconds after which an idle connection is closed.',
        }),
      ),
      headers_read_timeout: Type.Optional(
        Type.Integer({
          minimum: 1,
          maximum: weekSeconds,
          description: 'Seconds within which the request headers must arrive.',
        }),
      ),
      replay_cache: Type.Optional(Type.Array(ReplayCacheRule, { maxItems: 50 })),
      response: Type.Optional(
        Type.Object({
          headers: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
          pristine: Type.Optional(Type.Boolean()),
        }),
      ),
    }),
  ),
  tls_options: Type.Optional(
    Type.Object({
      alpn: Type.Optional(Words),
      versions: Type.Optional(Words),
      default_self_signed: Type.Optional(Type.Boolean()),
    }),
  ),
  proxy_proto_options: Type.Optional(Type.Object({ version: Type.Optional(Text) })),
})
export type MachinePort = Static<typeof MachinePort>

export const MachineService = Type.Object({
  protocol: Type.Optional(Type.Enum(['tcp', 'udp'])),
  internal_port: Type.Integer({ minimum: 1, maximum: 65_535 }),
  ports: Type.Optional(Type.Array(MachinePort)),
  concurrency: Type.Optional(
    Type.Object({
      type: Type.Optional(Type.Enum(['connections', 'requests'])),
      soft_limit: Type.Optional(Type.Integer({ minimum: 0 })),
      hard_limit: Type.Optional(Type.Integer({ minimum: 0 })),
    }),
  ),
  autostart: Type.Optional(Type.Boolean()),
  autostop: Type.Optional(Type.Union([Type.Boolean(), Type.Enum(['off', 'stop', 'suspend'])])),
  min_machines_running: Type.Optional(Type.Integer({ minimum: 0 })),
  checks: Type.Optional(Type.Array(MachineCheck)),
  force_instance_key: Type.Optional(Type.Union([Text, Type.Null()])),
  force_instance_description: Type.Optional(Type.Union([Text, Type.Null()])),
})
export type MachineService = Static<typeof MachineService>

export const MachineMount = Type.Object({
  volume: Type.Optional(Text),
  path: Type.String(),
  name: Type.Optional(Text),
  size_gb: Type.Optional(Type.Integer()),
  encrypted: Type.Optional(Type.Boolean()),
  extend_threshold_percent: Type.Optional(
    Type.Integer({ minimum: 0, maximum: 99, description: 'The volume is extended when it is this full, in percent.' }),
  ),
  add_size_gb: Type.Optional(
    Type.Integer({ minimum: 0, description: 'Gigabytes added each time; required with `extend_threshold_percent`.' }),
  ),
  size_gb_limit: Type.Optional(
    Type.Integer({ minimum: 0, description: 'The volume is not extended beyond this size.' }),
  ),
})
export type MachineMount = Static<typeof MachineMount>

/** Sent as an object or, in the notation of resolv.conf, as text such as `ndots:2`; always stored as an object. */
const DnsOption = Type.Union([
  Type.Object({ name: Text, value: Type.Optional(Text) }),
  Type.String({ description: 'The same in the notation of resolv.conf, such as `ndots:2`.' }),
])
export type DnsOption = Static<typeof DnsOption>

export const MachineConfig = Type.Object({
  image: Type.Optional(
    Type.String({ description: '`[host/]repository[:tag|@digest]`; required without `containers`.' }),
  ),
  env: Type.Optional(Type.Record(Type.String(), Type.String())),
  init: Type.Optional(
    Type.Object({
      exec: Type.Optional(Words),
      entrypoint: Type.Optional(Words),
      cmd: Type.Optional(Words),
      tty: Type.Optional(Type.Boolean()),
      swap_size_mb: Type.Optional(Type.Integer({ minimum: 0 })),
    }),
  ),
  guest: Type.Optional(
    Type.Object({
      cpu_kind: Type.Optional(Type.Enum(['shared', 'performance'])),
      cpus: Type.Optional(Type.Integer({ minimum: 1, maximum: 64 })),
      memory_mb: Type.Optional(Type.Integer({ minimum: 1, maximum: 1_048_576 })),
      max_memory_mb: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: 1_048_576,
          description: 'The limit up to which memory can be added while it runs; `memory_mb` when omitted.',
        }),
      ),
    }),
  ),
  size: Type.Optional(Text),
  rootfs: Type.Optional(
    Type.Object({
      persist: Type.Optional(Type.Enum(['never', 'always', 'restart'])),
      size_gb: Type.Optional(Type.Integer({ minimum: 1 })),
    }),
  ),
  metrics: Type.Optional(
    Type.Object({
      port: Type.Integer({ minimum: 1, maximum: 65_535 }),
      path: Type.Optional(Text),
      https: Type.Optional(Type.Boolean()),
    }),
  ),
  metadata: Type.Optional(Type.Record(Type.String(), Type.String())),
  mounts: Type.Optional(Type.Array(MachineMount, { maxItems: 1 })),
  services: Type.Optional(Type.Array(MachineService)),
  checks: Type.Optional(Type.Record(Type.String(), MachineCheck)),
  files: Type.Optional(Type.Array(MachineFile)),
  statics: Type.Optional(Type.Array(Type.Record(Type.String(), Type.Unknown()))),
  schedule: Type.Optional(Type.Enum(['hourly', 'daily', 'weekly', 'monthly'])),
  auto_destroy: Type.Optional(Type.Boolean()),
  restart: Type.Optional(RestartPolicy),
  dns: Type.Optional(
    Type.Object({
      skip_registration: Type.Optional(Type.Boolean()),
      nameservers: Type.Optional(Words),
      searches: Type.Optional(Words),
      options: Type.Optional(Type.Array(DnsOption)),
      hostname: Type.Optional(Text),
      hostname_fqdn: Type.Optional(Text),
    }),
  ),
  processes: Type.Optional(
    Type.Array(
      Type.Object({
        exec: Type.Optional(Words),
        entrypoint: Type.Optional(Words),
        cmd: Type.Optional(Words),
        user: Type.Optional(Text),
        env: Type.Optional(Type.Record(Type.String(), Type.String())),
        ignore_app_secrets: Type.Optional(Type.Boolean()),
        secrets: Type.Optional(Type.Array(ProgramSecret)),
        env_from: Type.Optional(Type.Array(EnvFrom)),
      }),
    ),
  ),
  containers: Type.Optional(
    Type.Array(MachineContainer, {
      description: 'Programs of several images that share the network and the limits of the machine.',
    }),
  ),
  standbys: Type.Optional(Words),
  stop_config: Type.Optional(StopConfig),
  disable_machine_autostart: Type.Optional(Type.Boolean()),
})
/** As it is sent. */
export type SentConfig = Static<typeof MachineConfig>
/** As it is stored: with containers, the image is that of the main one. */
export type MachineConfig = SentConfig & { image: string }
