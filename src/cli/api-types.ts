// Generated from openapi.json and openapi-sandbox.json by "make generate". Do not edit.

export interface App {
  id: string
  name: string
  status: 'pending' | 'deployed' | 'suspended'
  organization: OrganizationReference
  machine_count: number
  volume_count: number
  network: string
  network_cidr?: string
  internal_numeric_id: number
  cname_target: string
}

export interface AppPage {
  total_apps: number
  apps: {
    id: string
    name: string
    machine_count: number
    volume_count: number
    network: string
    status: 'pending' | 'deployed' | 'suspended'
    organization: OrganizationReference
    internal_numeric_id: number
  }[]
  next_cursor?: string
}

export interface CertificateDetail {
  hostname: string
  configured: boolean
  acme_requested: boolean
  status: 'active' | 'pending_ownership' | 'pending_validation'
  dns_provider: string | null
  rate_limited_until: string | null
  certificates: {
    source: 'custom' | 'fly'
    status: 'active' | 'pending_ownership' | 'pending_validation'
    created_at: string
    expires_at: string
    issuer: string
    issued: {
      type: 'rsa' | 'ecdsa'
      expires_at: string
      certificate_authority: string
    }[]
  }[]
  validation: {
    dns_configured: boolean
    alpn_configured: boolean
    http_configured: boolean
    ownership_txt_configured: boolean
  }
  dns_requirements: {
    a: string[]
    aaaa: string[]
    cname: string
    acme_challenge: {
      name: string
      target: string
    }
    ownership: {
      name: string
      app_value: string
      org_value: string
    }
  }
  validation_errors: {
    code: string
    message: string
    remediation: string
    timestamp: string
  }[]
  warning?: string
}

export interface CertificateList {
  certificates: CertificateSummary[]
  total_count: number
  next_cursor?: string
}

export interface CertificateSummary {
  hostname: string
  configured: boolean
  acme_requested: boolean
  has_custom_certificate: boolean
  has_fly_certificate: boolean
  acme_dns_configured: boolean
  acme_alpn_configured: boolean
  acme_http_configured: boolean
  ownership_txt_configured: boolean
  status: 'active' | 'pending_ownership' | 'pending_validation'
  dns_provider: string | null
  created_at: string
  updated_at: string
  expires_at: string | null
}

export interface ChangedSecrets {
  secrets: Secret[]
  version: number
  Version: number
}

export interface Checkpoint {
  id: string
  create_time: string
  comment?: string
  source_id?: string
  history: string[]
  is_auto: boolean
  health: string
}

export interface CheckpointEvent {
  type: 'info' | 'error' | 'complete'
  data?: string
  error?: string
  time: string
}

export interface CreatedApp {
  id: string
  created_at: number
  name: string
  status: 'pending' | 'deployed' | 'suspended'
  network: string
  organization: OrganizationReference
  internal_numeric_id: number
}

export interface ExecInMachineResponse {
  exit_code: number
  exit_signal: number
  stdout: string
  stderr: string
}

export interface ExecSession {
  id: string
  command: string
  workdir: string
  created: string
  tty: boolean
  bytes_per_second: number
  is_active: boolean
  last_activity?: string
}

export interface ExecSessionList {
  count: number
  sessions: ExecSession[]
}

export interface ExtendedVolume {
  volume: Volume
  needs_restart: boolean
}

export interface File {
  name: string
  path: string
  type: 'file' | 'directory' | 'symlink' | 'other'
  size: number
  mode: string
  modTime: string
  isDir: boolean
  uid: number
  gid: number
  target?: string
}

export interface FileList {
  path: string
  entries: File[]
  count: number
  truncated?: boolean
}

export interface IpAssignment {
  ip: string
  type: 'v4' | 'v6' | 'shared_v4' | 'private_v6'
  region: string
  service_name: string
  shared: boolean
  egress: boolean
  network?: {
    name: string
    org_slug: string
  }
  created_at: string
}

export interface IpAssignmentList {
  ips: IpAssignment[]
}

export interface IssuedToken {
  id: string
  token: string
  kind: 'root' | 'org' | 'read' | 'sandbox' | 'app'
}

export interface LastDrill {
  at: string
  target: string | null
  seconds: number
  result: string
  answer?: string
}

export interface Lease {
  status: 'success'
  data: {
    nonce: string
    expires_at: number
    owner: string
    description: string
    version: string
  }
}

export interface LogLine {
  timestamp: string
  message: string
  stream: 'stdout' | 'stderr' | 'platform'
  instance: string
  region: string
  container?: string
}

export interface Machine {
  id: string
  name: string
  state:
    | 'created'
    | 'starting'
    | 'started'
    | 'stopping'
    | 'stopped'
    | 'restarting'
    | 'suspending'
    | 'suspended'
    | 'replacing'
    | 'failed'
    | 'launch_failed'
    | 'destroying'
    | 'destroyed'
  region: string
  instance_id: string
  version: string
  private_ip: string
  image_ref: {
    registry: string
    repository: string
    tag: string
    digest: string
    labels: Record<string, string>
  }
  created_at: string
  updated_at: string
  cordoned: boolean
  config?: Record<string, unknown>
  incomplete_config?: null
  events?: MachineEvent[]
  checks?: {
    name: string
    status: 'passing' | 'warning' | 'critical'
    output: string
    updated_at: string
  }[]
  host_status?: 'ok'
  nonce?: string
  lease?: {
    description: string
    expires_at: number
    owner: string
  }
  failure?: string
  restart_count: number
  last_exit?: Record<string, unknown>
  next_restart_at?: string
  warnings?: string[]
  containers?: {
    name: string
    state: 'pending' | 'starting' | 'running' | 'restarting' | 'stopping' | 'stopped'
    health?: 'healthy' | 'unhealthy'
    exit_code?: number
    restart_count: number
  }[]
  app_name?: string
}

export interface MachineEvent {
  id: string
  type: string
  status: string
  source: 'user' | 'flyd' | 'proxy'
  timestamp: number
  request?: Record<string, unknown>
}

export interface MachineProcess {
  pid: number
  stime: number
  rtime: number
  command: string
  directory: string
  container?: string
  cpu: number
  rss: number
  listen_sockets: {
    proto: string
    address: string
  }[]
}

export interface NetworkPolicy {
  rules: {
    domain?: string
    action?: 'allow' | 'deny'
    include?: 'defaults'
  }[]
}

export interface Organization {
  id: string
  slug: string
  name: string
  internal_numeric_id: number
  cross_network_replays: boolean
  created_at: string
}

export interface OrganizationList {
  organizations: Organization[]
}

export interface OrganizationReference {
  name: string
  slug: string
  internal_numeric_id?: number
}

export interface PostgresAdoption {
  status: 'running' | 'done'
  total: number
  done: number
  adopted: {
    id: string
    name: string
    backups: number
    windows: number
    problems?: string[]
  }[]
  known: number
  unusable: {
    id: string
    reason: string
  }[]
  error?: string
}

export interface PostgresAuthority {
  certificate: string
}

export interface PostgresBackup {
  id: string
  status: 'queued' | 'running' | 'completed' | 'failed'
  type: 'full'
  size_bytes: number | null
  started_at: string | null
  finished_at: string | null
  verified_at: string | null
  pinned: boolean
  failure?: string
}

export interface PostgresCluster {
  id: string
  name: string
  organization: OrganizationReference
  status: 'creating' | 'initializing' | 'ready' | 'deleting' | 'deleted' | 'failed'
  plan: 'basic' | 'starter' | 'launch' | 'scale' | 'Performance'
  pg_major_version: '16' | '17'
  pg_version: string | null
  pg_newest_version: string | null
  upgrade?: PostgresUpgrade
  cpu_kind: 'shared' | 'performance'
  cpus: number
  memory_mb: number
  disk_size_gb: number
  replicas: number
  region: string
  postgis_enabled: boolean
  pool_mode: 'session' | 'transaction'
  retention_days: number
  maintenance_window: string | null
  created_at: string
  attached_apps: {
    name: string
  }[]
  endpoints?: {
    primary: {
      direct: {
        host: string
        port: number
      }
      pooler: {
        host: string
        port: number
      }
    }
  }
  private_endpoints?: {
    direct: {
      host: string
      port: number
    }
    pooler: {
      host: string
      port: number
    }
  }
  storage_provisioned_bytes: number | null
  storage_used_bytes: number | null
  health?: {
    status: 'ok' | 'degraded' | 'down' | 'read_only'
    reason: string
    since: string
  }
  recovery_window: {
    earliest: string
    latest: string
  } | null
  recovery_windows: RecoveryWindow[]
  restore?: RestoreProgress
  last_drill?: LastDrill
  failure?: string
  isolation?: {
    kind: string
    gap: string
  }
}

export interface PostgresClusterSummary {
  id: string
  name: string
  status: 'creating' | 'initializing' | 'ready' | 'deleting' | 'deleted' | 'failed'
  region: string
  plan: string
  created_at: string
  deleted_at?: string
  attached_apps: {
    name: string
  }[]
}

export interface PostgresCredentials {
  username: string
  password: string
}

export interface PostgresDatabase {
  name: string
}

export interface PostgresDiscardedData {
  discarded: string[]
}

export interface PostgresDrill {
  id: string
  status: 'queued' | 'restoring' | 'checking' | 'cleaning' | 'done'
  progress?: string
  target: string | null
  created_at: string
  finished_at: string | null
  seconds: number | null
  result: string | null
  answer?: string
}

export interface PostgresExtension {
  name: string
  description?: string
  default_version?: string
  system: boolean
  installed: {
    version: string
    schema: string
  } | null
}

export interface PostgresImport {
  id: string
  status:
    | 'checking'
    | 'dumping'
    | 'restoring'
    | 'live'
    | 'cutover'
    | 'finishing'
    | 'failing'
    | 'canceling'
    | 'done'
    | 'failed'
    | 'canceled'
  progress?: string
  source: string
  database: string
  live: boolean
  jobs: number
  tables_done: number
  tables_total: number | null
  bytes_done: number
  bytes_total: number | null
  current_table: string | null
  lag_bytes: number | null
  lag_seconds: number | null
  warnings: string[]
  created_at: string
  finished_at: string | null
  failure?: string
}

export interface PostgresLog {
  lines: string[]
}

export interface PostgresUpgrade {
  kind: 'minor' | 'major'
  phase:
    | 'planned'
    | 'restarting'
    | 'reverting'
    | 'restoring'
    | 'checking'
    | 'upgrading'
    | 'analyzing'
    | 'verifying'
    | 'finishing'
    | 'done'
    | 'failed'
  from: string
  to: string
  planned_at: string | null
  started_at: string | null
  finished_at: string | null
  error: string | null
}

export interface PostgresUser {
  username: string
  role: 'schema_admin' | 'writer' | 'reader'
}

export interface Quotas {
  organization: string
  quotas: {
    name:
      | 'apps'
      | 'machines'
      | 'volumes'
      | 'snapshots'
      | 'secrets'
      | 'addresses'
      | 'networks'
      | 'hostnames'
      | 'clusters'
      | 'database_users'
      | 'backups'
      | 'sandboxes'
      | 'checkpoints'
      | 'images'
      | 'disk_gb'
      | 'tokens'
      | 'commands'
      | 'sockets'
    limit: number | null
    used: number
    is_default: boolean
    description: string
  }[]
}

export interface QuotasList {
  organizations: Quotas[]
}

export interface RecoveryWindow {
  earliest: string
  latest: string
}

export interface RestoreProgress {
  source_cluster_id: string
  backup_id?: string
  pitr_time?: string
  phase: 'waiting' | 'copying' | 'replaying' | 'finishing' | 'done' | 'failed'
  bytes_done: number
  bytes_total: number | null
  replayed_until: string | null
  verified: boolean
  error: string | null
  loss?: string
}

export interface Sandbox {
  id: string
  name: string
  organization: string
  org_slug: string
  status: 'cold' | 'warm' | 'running'
  problem?: string
  url: string
  url_settings: {
    auth: string
    private_access: string
  }
  config: {
    ram_mb: number
    cpus: number
    region: string
    storage_gb: number
  }
  storage: {
    limit_bytes: number
    used_bytes?: number
    measured_at?: string
    enforced: boolean
  }
  image?: {
    reference: string
    digest?: string
    problem?: string
  }
  environment: Record<string, string>
  labels: string[]
  primary_region: string
  version: string
  environment_version: string
  isolation: {
    kind: string
    network: string
    gap?: string
  }
  created_at: string
  updated_at: string
  last_running_at?: string
}

export interface SandboxPage {
  sprites: Sandbox[]
  has_more: boolean
  next_continuation_token: string | null
  name?: string
  running: number
  warm: number
  cold: number
  running_limit: number
  warm_limit: number
  org: {
    name?: string
    running: number
    warm: number
    cold: number
    running_limit: number
    warm_limit: number
  }
}

export interface Secret {
  name: string
  digest: string
  created_at: string
  updated_at: string
  value?: string
}

export interface SecretList {
  secrets: Secret[]
}

export interface Service {
  name: string
  cmd: string
  args: string[]
  needs: string[]
  http_port?: number
  env?: Record<string, string>
  dir?: string
  health?: ServiceHealthCheck
  state: ServiceState
}

export interface ServiceEvent {
  type: 'started' | 'stdout' | 'stderr' | 'exit' | 'error' | 'stopping' | 'stopped' | 'gap' | 'complete'
  timestamp: number
  data?: string
  exit_code?: number
  log_files?: {
    stdout: string
    stderr: string
    combined: string
  }
}

export interface ServiceHealthCheck {
  http?: {
    path: string
    port?: number
  }
  command?: string[]
  interval?: string
  timeout?: string
  threshold?: number
}

export interface ServiceState {
  name: string
  status: 'stopped' | 'starting' | 'running' | 'stopping' | 'failed'
  pid?: number
  started_at?: string
  error?: string
  exit_code?: number
  restart_count?: number
  next_restart_at?: string
  health?: {
    status: 'starting' | 'healthy' | 'unhealthy'
    since?: string
  }
}

export interface Snapshot {
  id: string
  size: number
  volume_size: number
  digest: string
  created_at: string
  status: 'creating' | 'created' | 'failed' | 'removing' | 'removed'
  retention_days: number
}

export interface Token {
  id: string
  kind: 'root' | 'org' | 'read' | 'sandbox' | 'app'
  org_slug: string | null
  sandbox: string | null
  name: string
  created_at: string
  expires_at: string | null
  revoked_at: string | null
}

export interface TokenList {
  tokens: Token[]
}

export interface Volume {
  id: string
  name: string
  state: 'creating' | 'created' | 'extending' | 'pending_destroy' | 'failed' | 'destroying' | 'destroyed'
  size_gb: number
  region: string
  zone: string
  encrypted: boolean
  attached_machine_id: string | null
  attached_alloc_id: string | null
  created_at: string
  updated_at: string
  fstype: string
  type: string
  host_status: string
  host_dedication_key: string
  snapshot_retention: number
  auto_backup_enabled: boolean
  blocks?: number
  block_size?: number
  blocks_free?: number
  blocks_avail?: number
  bytes_used?: number
  bytes_total?: number
  app_name?: string
  failure?: string
}

export interface WaitForMachineResponse {
  ok: boolean
  state: string
  version: string
  event_id: string
}

export interface WrittenFile {
  path: string
  size: number
  mode: string
}
