import type { ClusterProcess, Hosting, PostgresDriver, ToolchainNeeds } from '../../../src/drivers/postgres/driver.ts'
import type { PoolerDriver } from '../../../src/drivers/postgres/pooler/driver.ts'
import type { ReceiverDriver } from '../../../src/drivers/postgres/receiver/driver.ts'
import { sqlAdmin } from '../../../src/drivers/postgres/sql/admin.ts'
import type {
  BackupDescription,
  ClusterDescription,
  Repository,
  WalRange,
  WalTail,
} from '../../../src/drivers/repository/driver.ts'
import { unavailable } from '../../../src/model/errors.ts'
import { formatLsn, parseSegmentName, segmentNumber } from '../../../src/model/postgres/wal.ts'
import { FakeCalls } from './calls.ts'

/** Keeps clusters, their archives and the repository in memory. */
export class FakePostgres extends FakeCalls {
  readonly clusters = new Map<string, { process: ClusterProcess; password: boolean }>()
  readonly verifiers = new Map<string, string>()
  /** The users of all clusters, and the verifiers with which they were created. */
  readonly users = new Map([['fly-user', 'schema_admin']])
  readonly createdVerifiers = new Map<string, string>()
  readonly poolers = new Set<string>()
  readonly slots = new Map<string, string>()
  readonly receivers = new Set<string>()
  readonly kept = new Set<string>()
  /** The cluster descriptions in the repository. */
  readonly descriptions = new Map<string, ClusterDescription>()
  describeProblem: string | undefined
  readonly unreadableDescriptions = new Set<string>()
  /** Damage of backups that were exchanged, by label. */
  readonly foreignBackups = new Map<string, string>()
  /** The backups that can be adopted, and the end of the WAL after them. */
  readonly described: BackupDescription[] = []
  archiveTail: WalTail | undefined = { end: 0x3000000n, newestCommit: undefined }
  receiverProblem = false
  readonly receiverLog = [
    '2026-11-15 15:37:38.5  pg_receivewal: error: could not write 4 bytes to file "7.partial": No space left on device',
    '2026-11-15 15:37:38.6  pg_receivewal: error: disconnected',
  ]
  archiveEnd: bigint | undefined
  /** Missing WAL. */
  hole: WalRange | undefined
  /** The position of every time. */
  cut: bigint | undefined
  cutProblem: Error | undefined
  /** Runs before the files of a cluster are removed from the repository. */
  whileRemoving: () => Promise<void> = async () => {}
  hasStepBack = false
  firewallProblem: string | undefined
  /** The archived segments that have a digest, and whether those in holes are intact again. */
  sealedFiles: string[] = []
  isRepaired = false
  /** Why the directory of every backup cannot be found. */
  missingBackup: string | undefined
  repositoryProblem: string | undefined
  readonly limits = new Set<string>()
  readonly logs = new Map<string, string[]>()
  freeBytes = 10 ** 12
  repositoryFreeBytes = 10 ** 12
  /** The trims of archives. */
  readonly trimmed: { before: string; kept: string[] }[] = []
  usedBytes = 40_000_000
  ports = { first: 15_000, last: 15_999 }
  boundPorts = new Set<number>()
  toolchainProblem: string | undefined
  /** What the installations of clusters were asked for. */
  readonly needs: ToolchainNeeds[] = []
  readonly availableExtensions = ['citext']
  /** The extensions of each cluster, in the order of their creation. */
  readonly extensions = new Map<string, string[]>()
  /** The minor version that is installed, and those that do not start. */
  installedMinor = 1
  readonly brokenVersions = new Set<string>()
  /** The versions that clusters run. */
  readonly versions = new Map<string, string>()
  dataProblem: string | undefined
  /** What is missing of a data directory. */
  readonly dataProblems = new Map<string, string>()
  /** The data directories that were moved aside. */
  readonly aside = new Map<string, string[]>()
  planProblem: Error | undefined
  tailProblem: Error | undefined
  startProblem: string | undefined
  neverStarts = false
  poolerNeverStarts = false
  poolerSilent = false
  poolerProblem: string | undefined
  probeProblem: string | undefined
  /** The SQLSTATE that comes with `probeProblem`. */
  probeCode: string | undefined
  databases = ['fly-db']
  readOnly = 'off'
  created = 0

  /** Ends the server of a cluster, as SIGKILL would, with these last lines in its log. */
  kill(id: string, ...log: string[]): void {
    this.clusters.get(id)!.process = { is: 'stopped', log }
  }

  get hosting(): Hosting {
    return {
      listen: '127.0.0.1',
      localHost: '127.0.0.1',
      hosts: ['localhost'],
      ports: this.ports,
      uids: { first: 300_001, last: 365_535 },
      findToolchain: async (major, needs = {}) => {
        this.needs.push(needs)
        if (this.toolchainProblem) throw new Error(this.toolchainProblem)
        return this.called({
          major,
          version: `${major}.${this.installedMinor}`,
          source: 'npm',
          bin: `/bin-${major}.${this.installedMinor}`,
          share: '/share',
          tools: '/tools',
        })
      },
      isInstalled: () => false,
      canBind: (port) => this.called(!this.boundPorts.has(port)),
      freeBytes: () => this.called(this.freeBytes),
      findFirewallProblem: () => this.called(this.firewallProblem),
      ensureLimits: (id) => {
        this.limits.add(id)
        return []
      },
      ensureDisk: () => this.called(undefined),
      ensureDiskLimit: () => this.called(undefined),
      removeLimits: (id) => {
        this.limits.delete(id)
        return this.called(undefined)
      },
    }
  }

  private askExtensions(id: string, text: string): object[] {
    const installed = this.extensions.get(id) ?? []
    const name = /CREATE EXTENSION "(.*?)"/.exec(text)?.[1]
    if (name !== undefined && installed.includes(name)) throw new Error(`extension "${name}" already exists`)
    if (name !== undefined) this.extensions.set(id, [...installed, name])
    return this.availableExtensions.map((each) => {
      const facts = { name: each, schema: null, trusted: true, relocatable: true, requires: [] }
      return { ...facts, description: '', version: '1', installed: installed.includes(each) ? '1' : null }
    })
  }

  get postgres(): PostgresDriver {
    const query = (async (id: string, _database: string, text: string, values?: unknown[]) => {
      const verifier = /ALTER ROLE .* PASSWORD '(.*)'/.exec(text)?.[1]
      if (verifier) {
        this.clusters.get(id)!.password = true
        this.verifiers.set(id, verifier)
      }
      const [, created, initial] = /CREATE ROLE "(.*)" LOGIN PASSWORD '(.*?)'/.exec(text) ?? []
      if (created !== undefined) {
        this.users.set(created, /GRANT (\w+) TO/.exec(text)![1]!)
        this.createdVerifiers.set(created, initial!)
      }
      const dropped = /DROP ROLE "(.*)"/.exec(text)?.[1]
      if (dropped !== undefined) this.users.delete(dropped)
      if (/CREATE EXTENSION|pg_available_extension/.test(text)) return this.called(this.askExtensions(id, text))
      if (/server_version/.test(text)) return this.called([{ server_version: this.versions.get(id) }])
      if (/alter system set/.test(text)) this.readOnly = 'on'
      if (/alter system reset/.test(text)) this.readOnly = 'off'
      if (/pg_file_settings/.test(text)) return this.called([{ setting: this.readOnly }])
      if (/pg_database_size/.test(text)) return this.called([{ bytes: String(this.usedBytes) }])
      if (/pg_read_all_data/.test(text)) return this.called([{ former: false, current: true }])
      if (/textsend|datistemplate/.test(text)) return this.called([])
      if (/from pg_database/.test(text)) return this.called(this.databases.map((name) => ({ name, open: true })))
      if (/pg_prepared_xacts/.test(text)) return this.called([])
      if (/pg_walfile_name/.test(text)) return this.called([{ file: '000000010000000000000003' }])
      if (/clock_timestamp/.test(text)) return this.called([{ lsn: '0/3000100', at: new Date().toISOString() }])
      if (/pg_current_wal_insert_lsn/.test(text)) return this.called([{ lsn: '0/3000000', active: 0 }])
      if (/rolpassword as verifier/.test(text)) {
        const verifier = this.createdVerifiers.get(values![0] as string) ?? this.verifiers.get(id)
        return this.called([{ verifier }])
      }
      if (/from pg_authid/.test(text)) return this.called([])
      return this.called([...this.users].map(([name, role]) => ({ name, role })))
    }) as unknown as PostgresDriver['query']
    const client = { query, closeConnections: () => this.called(undefined) }
    return {
      ...client,
      ...sqlAdmin(client),
      list: () => [...this.clusters.keys()],
      ensureData: async (id) => {
        if (this.dataProblem) throw new Error('create the data directory', { cause: new Error(this.dataProblem) })
        if (!this.clusters.has(id)) {
          this.clusters.set(id, { process: { is: 'stopped', log: [] }, password: false })
          this.created++
        }
        return this.called(undefined)
      },
      ensureRunning: async (id, { toolchain }) => {
        const cluster = this.clusters.get(id)
        if (!cluster) throw new Error('it has no data directory')
        if (this.startProblem) throw new Error(this.startProblem)
        if (cluster.process.is === 'stopped' && !this.neverStarts && !this.brokenVersions.has(toolchain.version)) {
          cluster.process = { is: 'starting', pid: 7 }
          this.versions.set(id, toolchain.version)
        }
        return this.called(undefined)
      },
      data: {
        findProblem: (id) =>
          this.dataProblems.get(id) ?? (this.clusters.has(id) ? undefined : 'its data directory is gone'),
        moveAside: (id, name) => {
          if (this.aside.get(id)?.includes(name) || !this.clusters.has(id)) return
          this.aside.set(id, [...(this.aside.get(id) ?? []), name])
          this.clusters.delete(id)
          this.dataProblems.delete(id)
        },
        discard: (id) => void this.clusters.delete(id),
        listAside: (id) => this.aside.get(id) ?? [],
        removeAside: (id, names) => {
          const kept = (this.aside.get(id) ?? []).filter((name) => !names.includes(name))
          if (kept.length > 0) this.aside.set(id, kept)
          else this.aside.delete(id)
        },
      },
      inspect: (id) => {
        const cluster = this.clusters.get(id)
        const seen = cluster?.process ?? { is: 'absent' as const }
        if (cluster?.process.is === 'starting') cluster.process = { is: 'ready', pid: 7 }
        return this.called(seen)
      },
      waitUntilReady: async (id) => {
        await this.postgres.inspect(id)
        return this.postgres.inspect(id)
      },
      watch: (() => this.called([])) as unknown as PostgresDriver['watch'],
      probe: ({ database }) => {
        const problem = this.probeProblem ?? (this.databases.includes(database) ? undefined : 'no such database')
        if (problem === undefined) return this.called(undefined)
        return Promise.reject(new Error(problem, { cause: { code: this.probeCode } }))
      },
      measure: () => this.called(this.usedBytes),
      stop: (id) => {
        const cluster = this.clusters.get(id)
        if (cluster) cluster.process = { is: 'stopped', log: [] }
        return this.called(undefined)
      },
      findCheckpoint: () => this.called(undefined),
      remove: (id) => {
        this.clusters.delete(id)
        return this.called(undefined)
      },
    }
  }

  get pooler(): PoolerDriver {
    const nothing = () => this.called(undefined)
    return {
      ensurePooler: (id) => {
        if (this.poolerProblem) return Promise.reject(new Error(this.poolerProblem))
        if (!this.poolerNeverStarts) this.poolers.add(id)
        return nothing()
      },
      inspectPooler: (id) => this.called(this.poolers.has(id) ? { is: 'running', pid: 8 } : { is: 'stopped', log: [] }),
      endSessions: () => (this.poolerSilent ? Promise.reject(unavailable('no answer')) : nothing()),
      removePooler: (id) => {
        this.poolers.delete(id)
        return nothing()
      },
    }
  }

  get receiver(): ReceiverDriver {
    return {
      ensureSlot: (id, slot) => {
        this.slots.set(id, slot)
        return this.called(undefined)
      },
      inspectSlot: (id, slot) => {
        if (this.slots.get(id) !== slot) return this.called({ is: 'absent' })
        return this.called({ is: 'ok', active: !this.receiverProblem, restartLsn: 0x3000000n, flushLsn: 0x3000000n })
      },
      dropSlot: (id) => {
        this.slots.delete(id)
        return this.called(undefined)
      },
      ensureReceiver: (id) => {
        this.receivers.add(id)
        return this.called(undefined)
      },
      inspectReceiver: (id) => {
        if (this.receiverProblem) return this.called({ is: 'stopped', log: this.receiverLog })
        return this.called(this.receivers.has(id) ? { is: 'running', pid: 9 } : { is: 'absent' })
      },
      removeReceiver: (id) => {
        this.receivers.delete(id)
        return this.called(undefined)
      },
    }
  }

  get repository(): Repository {
    return {
      removeBackup: (id: string, label: string) => {
        this.kept.delete(`${id}/${label}`)
        return this.called(undefined)
      },
      removeWalBefore: (_id: string, _epoch: number, before: bigint, kept: { from: bigint; to: bigint }[] = []) => {
        const words = kept.map(({ from, to }) => `${formatLsn(from)} to ${formatLsn(to)}`)
        this.trimmed.push({ before: formatLsn(before), kept: words })
        return this.called(0)
      },
      freeBytes: () => this.called(this.repositoryFreeBytes),
      removeArchive: () => this.called(undefined),
      archiveEnd: () => this.called(this.archiveEnd),
      findMissingBackup: async () => {
        if (this.repositoryProblem) throw new Error(this.repositoryProblem)
        return this.called(this.missingBackup)
      },
      planWal: () => (this.planProblem ? Promise.reject(this.planProblem) : this.called([])),
      archiveTail: (_id: string, _epoch: number, _timeline: number, _from: bigint, before?: bigint) => {
        const tail = this.archiveTail
        if (this.tailProblem) return Promise.reject(this.tailProblem)
        return this.called(tail && before !== undefined && tail.end > before ? { ...tail, end: before } : tail)
      },
      findHole: (_id: string, _epoch: number, _timeline: number, { from, to }: WalRange) => {
        const hole = this.hole && this.hole.from < to && this.hole.to > from ? this.hole : undefined
        return this.called(hole)
      },
      findCut: (_id: string, _epoch: number, _timeline: number, _time: bigint, { to }: WalRange) => {
        if (this.cutProblem) return Promise.reject(this.cutProblem)
        return this.called(this.cut ?? to)
      },
      findStepBack: () => this.called(this.hasStepBack ? { lsn: 1n, newest: 1n } : undefined),
      recordEnd: () => this.called(undefined),
      sealSegments: () => this.called({ count: 0, damaged: [] }),
      listSealed: (_id: string, _epoch: number, _timeline: number, { from, to }: WalRange, limit: number) => {
        const isIn = ({ name }: { name: string }) => {
          const { number } = parseSegmentName(name)!
          return number >= segmentNumber(from) && number <= segmentNumber(to - 1n)
        }
        const files = this.sealedFiles.map((name) => ({ name, sha256: '' })).filter(isIn)
        return this.called({ directory: '/archive', files: files.slice(0, limit) })
      },
      isIntact: () => this.called(this.isRepaired),
      findAlteredSegment: () => this.called(undefined),
      findRecordedEnd: () => this.called(undefined),
      findForeignBackup: (_id: string, label: string) => this.called(this.foreignBackups.get(label)),
      listUnusableBackups: () => this.called([]),
      findBackup: (id: string, label: string) =>
        this.called(this.described.find((each) => each.clusterId === id && each.label === label)),
      findDescription: (id: string) => {
        if (this.unreadableDescriptions.has(id)) return Promise.reject(new Error('its description is not readable'))
        return this.called(this.descriptions.get(id))
      },
      listBackups: (id: string) => this.called(this.described.filter(({ clusterId }) => clusterId === id)),
      describeCluster: (id: string, description: ClusterDescription) => {
        if (this.describeProblem) throw new Error(this.describeProblem)
        this.descriptions.set(id, description)
        return this.called(undefined)
      },
      listClusters: () =>
        this.called([...new Set([...this.described.map(({ clusterId }) => clusterId), ...this.descriptions.keys()])]),
      removeCluster: async (id: string) => {
        await this.whileRemoving()
        for (const key of this.kept) if (key.startsWith(`${id}/`)) this.kept.delete(key)
        this.descriptions.delete(id)
        return this.called(undefined)
      },
    } as unknown as Repository
  }
}
