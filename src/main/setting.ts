import { availableParallelism, homedir } from 'node:os'

interface Setting {
  /** The environment variable. */
  name: string
  fallback: string
  about: string
  /** The value is never printed. */
  secret?: true
}

const defaultHome = process.getuid?.() === 0 ? '/var/lib/berth' : `${homedir()}/.berth`

export const settings: Setting[] = [
  { name: 'BERTH_HOME', fallback: defaultHome, about: 'directory that holds all state' },
  { name: 'BERTH_API_LISTEN', fallback: '127.0.0.1:4280', about: 'platform API; port 0 picks a free one' },
  { name: 'BERTH_SANDBOX_LISTEN', fallback: '127.0.0.1:4281', about: 'sandbox API' },
  {
    name: 'BERTH_EDGE_LISTEN',
    fallback: '127.0.0.1:4282',
    about: 'apps and sandboxes, by their host names; port 0 picks a free one once',
  },
  { name: 'BERTH_SANDBOX_DOMAIN', fallback: 'sandbox.localhost', about: 'sandboxes are at <name>.<this domain>' },
  {
    name: 'BERTH_ISSUER',
    fallback: '',
    about: 'issuer URL of the identity tokens of machines; the platform API when unset',
  },
  { name: 'BERTH_DOMAIN', fallback: 'berth.localhost', about: 'apps are at <name>.<this domain>' },
  { name: 'BERTH_EDGE_WORKERS', fallback: String(availableParallelism()), about: 'worker processes of the edge' },
  { name: 'BERTH_AUTOSTOP_INTERVAL', fallback: '3m', about: 'machines with autostop are stopped after this long idle' },
  { name: 'BERTH_TOKEN', fallback: '', about: 'root token; generated into <home>/token when unset', secret: true },
  { name: 'BERTH_DATABASE_URL', fallback: '', about: 'external state database; embedded when unset', secret: true },
  {
    name: 'BERTH_EDGE_DATABASE_URL',
    fallback: '',
    about:
      'the same database with a role of the edge, which gets only the rights it needs; BERTH_DATABASE_URL when unset',
    secret: true,
  },
  { name: 'BERTH_TLS_CERT', fallback: '', about: 'certificate file for the listeners' },
  { name: 'BERTH_TLS_KEY', fallback: '', about: 'key file for the listeners' },
  { name: 'BERTH_INSECURE', fallback: 'off', about: 'on: listen beyond loopback without TLS' },
  { name: 'BERTH_RATE_LIMIT', fallback: 'off', about: 'on: 1/s burst 3 per action and object, 5/s burst 10 for reads' },
  {
    name: 'BERTH_QUOTAS',
    fallback: '',
    about: 'default quotas of organizations such as clusters=5,disk_gb=unlimited; see berth quotas list',
  },
  { name: 'BERTH_REGIONS', fallback: '', about: 'comma list of region codes; any well-formed one when unset' },
  {
    name: 'BERTH_TRUSTED_PROXIES',
    fallback: '',
    about: 'comma list of addresses and ranges of proxies in front of the edge whose X-Forwarded-* fields are believed',
  },
  {
    name: 'BERTH_IP_POOLS',
    fallback: '',
    about: 'comma list of address ranges for apps; a 127.100.0.0/16 and a private IPv6 /64 per home when unset',
  },
  {
    name: 'BERTH_OUTBOUND_ALLOW',
    fallback: '',
    about: 'comma list of host[:port], address[:port] or range of registries that are not at a public address',
  },
  {
    name: 'BERTH_OUTBOUND_DNS',
    fallback: '',
    about: 'comma list of name servers, address[:port], for names that tenants choose; those of the host when unset',
  },
  { name: 'BERTH_PG_LISTEN', fallback: '127.0.0.1', about: 'addresses clusters listen on, separated by commas' },
  { name: 'BERTH_PG_HOST', fallback: 'localhost', about: 'host name of clusters in endpoints and certificates' },
  { name: 'BERTH_PG_PORTS', fallback: '15000-19999', about: 'ports for clusters' },
  {
    name: 'BERTH_POSTGRES',
    fallback: 'bundled',
    about: 'bundled or distribution: where the PostgreSQL of new clusters comes from',
  },
  {
    name: 'BERTH_POSTGRES_DIRECTORY',
    fallback: '/usr/lib/postgresql',
    about: 'where the distribution has PostgreSQL, in directories such as 17/bin',
  },
  {
    name: 'BERTH_PG16_BIN',
    fallback: '',
    about: 'bin directory of a PostgreSQL 16 for all clusters; BERTH_POSTGRES when unset',
  },
  {
    name: 'BERTH_PG17_BIN',
    fallback: '',
    about: 'bin directory of a PostgreSQL 17 for all clusters; BERTH_POSTGRES when unset',
  },
  { name: 'BERTH_REPOSITORY', fallback: '', about: 'backups and WAL of clusters; <home>/repository when unset' },
  { name: 'BERTH_PITR_DAYS', fallback: '7', about: 'length of the recovery window' },
  { name: 'BERTH_BACKUP_INTERVAL', fallback: '24h', about: 'each cluster is backed up at least this often' },
  { name: 'BERTH_DRILL_INTERVAL', fallback: '24h', about: 'each cluster has a restore drill this often, or off' },
  { name: 'BERTH_SCRUB_INTERVAL', fallback: '7d', about: 'the checksums of each backup are verified this often' },
  { name: 'BERTH_DELETED_DAYS', fallback: '7', about: 'backups of a deleted cluster are kept this long' },
  { name: 'BERTH_UID_BASE', fallback: '300000', about: 'first uid for workloads when root' },
  { name: 'BERTH_URL', fallback: '', about: 'platform the CLI talks to; the local home when unset' },
  {
    name: 'BERTH_SANDBOX_URL',
    fallback: '',
    about: 'sandbox API the CLI talks to; the host of BERTH_URL with port 4281 when unset',
  },
  { name: 'BERTH_LOG_LEVEL', fallback: 'info', about: 'fatal, error, warn, info, debug or trace' },
]
