import { generateKeyPairSync, type KeyObject, randomBytes } from 'node:crypto'
import type { CheckpointDriver } from '../../src/drivers/box/checkpoint/driver.ts'
import type { BoxDriver, BoxEntry } from '../../src/drivers/box/driver.ts'
import { findCommandPath, findCommandPid, signalCommand } from '../../src/drivers/box/enter/command.ts'
import { renderRequest } from '../../src/drivers/box/enter/enter.ts'
import { startHelper } from '../../src/drivers/box/enter/helper.ts'
import { readPorts } from '../../src/drivers/box/port.ts'
import type { BackupDriver, BackupState } from '../../src/drivers/postgres/backup/driver.ts'
import type { DrillDriver } from '../../src/drivers/postgres/drill/driver.ts'
import type { ClusterProcess, Hosting, PostgresDriver } from '../../src/drivers/postgres/driver.ts'
import type { PoolerDriver } from '../../src/drivers/postgres/pooler/driver.ts'
import type { ReceiverDriver } from '../../src/drivers/postgres/receiver/driver.ts'
import type { CopyState, RecoveryState, RestoreDriver } from '../../src/drivers/postgres/restore/driver.ts'
import { sqlAdmin } from '../../src/drivers/postgres/sql/admin.ts'
import type { BackupDescription, ClusterDescription, Repository, WalTail } from '../../src/drivers/repository/driver.ts'
import type { VolumeDriver } from '../../src/drivers/volume/driver.ts'
import type { LiveContext } from '../../src/live/context.ts'
import { unavailable } from '../../src/model/errors.ts'
import { formatLsn } from '../../src/model/postgres/wal.ts'
import type { BoxSpec } from '../../src/model/sandbox/box.ts'
import type { World } from '../../src/reconcile/step.ts'

import { FakeImages, FakeMachines } from './fake-machines.ts'
import { type FakeService, fakeServices } from './fake-services.ts'

/** Enters no box: helpers work on the host. */
function entryToHost(): BoxEntry {
  const env = renderRequest({
    machine: [process.arch],
    way: ['none'],
    uid: [String(process.getuid!())],
    service: [''],
    cgroup: [],
    filter: ['/dev/null'],
  })
  return { program: 'perl', args: [], env }
}

/** Clusters in memory. `breakCall(n)` makes the nth call do its work and then throw, as a lost reply would. */
export class FakeWorld {
  /** What the authority makes. */
  certificate = { fullchain: '', privateKey: '' }
  private key: KeyObject | undefined
  readonly clusters = new Map<string, { process: ClusterProcess; password: boolean }>()
  readonly verifiers = new Map<string, string>()
  readonly poolers = new Set<string>()
  readonly slots = new Map<string, string>()
  readonly receivers = new Set<string>()
  readonly staged = new Map<string, string>()
  readonly kept = new Set<string>()
  /** What the repository was told of clusters. */
  readonly descriptions = new Map<string, ClusterDescription>()
  describeProblem: string | undefined
  /** Backups that are there to be adopted, and where the log behind them ends. */
  readonly described: BackupDescription[] = []
  archiveTail: WalTail | undefined
  receiverProblem = false
  readonly receiverLog = [
    '2026-11-15 15:37:38.5  pg_receivewal: error: could not write 4 bytes to file "7.partial": No space left on device',
    '2026-11-15 15:37:38.6  pg_receivewal: error: disconnected',
  ]
  backupProblem: string | undefined
  copyProblem: string | undefined
  /** What is seen of them while they are on their way. */
  backupSeen: BackupState | undefined
  copySeen: CopyState | undefined
  recoverySeen: RecoveryState | undefined
  readonly recovered = { endLsn: '0/3000000', timeline: 2, replayedUntil: '2026-11-01 10:59:00.123+00' }
  /** Whether copies share the blocks of the backup, and what is wrong with those. */
  reflinks = false
  readonly unverified = new Set<string>()
  verificationRuns = false
  blockProblem: string | undefined
  readonly scrubs = new Map<string, string>()
  scrubProblem: string | undefined
  archiveEnd: bigint | undefined
  pagesProblem: string | undefined
  contentsProblem: string | undefined
  readonly services = new Map<string, FakeService>()
  /** Ids of boxes, and whether they run. */
  readonly boxesUp = new Map<string, boolean>()
  /** What each was last ensured with. */
  readonly specs = new Map<string, BoxSpec>()
  stops = 0
  boxProblem: string | undefined
  policiesPossible = true
  /** What the box has written, a word in place of its files, and the copies of it. */
  readonly layers = new Map<string, string>()
  readonly copies = new Map<string, string>()
  checkpointProblem: string | undefined
  /** Sizes of disks, the bytes that are written to them, and what snapshots are copies of. */
  readonly disks = new Map<string, number>()
  readonly diskUse = new Map<string, number>()
  readonly diskCopies = new Map<string, string>()
  diskProblem: string | undefined
  disksGrowAtStart = false
  readonly drillJobs = new Map<string, string>()
  drillIntervalSeconds: number | null = 86_400
  machines = new FakeMachines()
  images = new FakeImages()
  private machineDrivers: Pick<World, 'machines' | 'images'> | undefined
  readonly limits = new Set<string>()
  readonly logs = new Map<string, string[]>()
  readonly encryptionKey = randomBytes(32)
  freeBytes = 10 ** 12
  repositoryFreeBytes = 10 ** 12
  /** What was removed of archives. */
  readonly trimmed: { before: string; kept: string[] }[] = []
  usedBytes = 40_000_000
  ports = { first: 15_000, last: 15_999 }
  boundPorts = new Set<number>()
  toolchainProblem: string | undefined
  dataProblem: string | undefined
  startProblem: string | undefined
  neverStarts = false
  poolerNeverStarts = false
  poolerSilent = false
  poolerProblem: string | undefined
  probeProblem: string | undefined
  /** What PostgreSQL would say with the problem. */
  probeCode: string | undefined
  databases = ['fly-db']
  readOnly = 'off'
  created = 0
  calls = 0
  /** Runs after the effect of each call, with its number. */
  onCall: (call: number) => unknown = () => undefined
  private broken = 0

  reset(): void {
    const { encryptionKey, machines, images, machineDrivers } = this
    Object.assign(machines, new FakeMachines())
    Object.assign(images, new FakeImages())
    Object.assign(this, { ...new FakeWorld(), encryptionKey, machines, images, machineDrivers })
  }

  breakCall(nth: number): void {
    this.calls = 0
    this.broken = nth
  }

  /** The process is gone, as after a SIGKILL, and these are its last words. */
  kill(id: string, ...log: string[]): void {
    this.clusters.get(id)!.process = { is: 'stopped', log }
  }

  private async called<T>(value: T): Promise<T> {
    const call = ++this.calls
    await this.onCall(call)
    if (call === this.broken) throw new Error(`the reply of call ${call} was lost`)
    return value
  }

  get hosting(): Hosting {
    return {
      listen: '127.0.0.1',
      localHost: '127.0.0.1',
      hosts: ['localhost'],
      ports: this.ports,
      uids: { first: 300_001, last: 365_535 },
      findToolchain: async (major) => {
        if (this.toolchainProblem) throw new Error(this.toolchainProblem)
        return this.called({
          major,
          version: `${major}.1`,
          source: 'npm',
          bin: '/bin',
          share: '/share',
          tools: '/tools',
        })
      },
      isInstalled: () => false,
      canBind: (port) => this.called(!this.boundPorts.has(port)),
      freeBytes: () => this.called(this.freeBytes),
      ensureLimits: (id) => {
        this.limits.add(id)
        return []
      },
      removeLimits: (id) => {
        this.limits.delete(id)
        return this.called(undefined)
      },
    }
  }

  get postgres(): PostgresDriver {
    const query = (async (id: string, _database: string, text: string) => {
      const verifier = /ALTER ROLE .* PASSWORD '(.*)'/.exec(text)?.[1]
      if (verifier) {
        this.clusters.get(id)!.password = true
        this.verifiers.set(id, verifier)
      }
      if (/alter system set/.test(text)) this.readOnly = 'on'
      if (/alter system reset/.test(text)) this.readOnly = 'off'
      if (/pg_file_settings/.test(text)) return this.called([{ setting: this.readOnly }])
      if (/pg_database_size/.test(text)) return this.called([{ bytes: String(this.usedBytes) }])
      if (/from pg_database/.test(text)) return this.called(this.databases.map((name) => ({ name, open: true })))
      if (/pg_read_all_data/.test(text)) return this.called([])
      if (/pg_prepared_xacts/.test(text)) return this.called([])
      if (/pg_walfile_name/.test(text)) return this.called([{ file: '000000010000000000000003' }])
      if (/clock_timestamp/.test(text)) return this.called([{ at: new Date().toISOString() }])
      if (/pg_current_wal_insert_lsn/.test(text)) return this.called([{ lsn: '0/3000000', active: 0 }])
      if (/rolpassword as verifier/.test(text)) return this.called([{ verifier: this.verifiers.get(id) }])
      if (/from pg_authid/.test(text)) return this.called([])
      return this.called([{ name: 'fly-user', role: 'schema_admin' }])
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
      ensureRunning: async (id) => {
        const cluster = this.clusters.get(id)
        if (!cluster) throw new Error('it has no data directory')
        if (this.startProblem) throw new Error(this.startProblem)
        if (cluster.process.is === 'stopped' && !this.neverStarts) cluster.process = { is: 'starting', pid: 7 }
        return this.called(undefined)
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

  get backups(): BackupDriver {
    const nothing = () => this.called(undefined)
    return {
      startBackup: (id, label) => {
        this.staged.set(id, label)
        return nothing()
      },
      inspectBackup: (id, label) => {
        if (this.backupSeen) return this.called(this.backupSeen)
        if (this.backupProblem) return this.called({ is: 'failed', reason: this.backupProblem })
        if (this.staged.get(id) !== label) return this.called({ is: 'absent' })
        const times = { startedAt: new Date().toISOString(), stoppedAt: new Date(Date.now() - 60_000).toISOString() }
        return this.called({
          is: 'done',
          timeline: 1,
          startLsn: '0/2000028',
          stopLsn: '0/2000100',
          sizeBytes: 40,
          ...times,
        })
      },
      finishBackup: (description) => {
        this.kept.add(`${description.clusterId}/${description.label}`)
        return nothing()
      },
      abandonBackup: (id) => {
        this.staged.delete(id)
        return nothing()
      },
      startScrub: (id, label) => {
        this.scrubs.set(id, label)
        return nothing()
      },
      inspectScrub: (id) => {
        if (!this.scrubs.has(id)) return this.called({ is: 'absent' })
        return this.called(this.scrubProblem ? { is: 'failed', reason: this.scrubProblem } : { is: 'passed' })
      },
      removeScrub: (id) => {
        this.scrubs.delete(id)
        return nothing()
      },
    }
  }

  get restores(): RestoreDriver {
    return {
      startCopy: (id, { trusted }) => {
        if (!this.clusters.has(id)) {
          this.clusters.set(id, { process: { is: 'stopped', log: [] }, password: false })
          this.created++
          if (trusted && this.reflinks) this.unverified.add(id)
        }
        return this.called(undefined)
      },
      startVerification: (id) => {
        if (!this.verificationRuns && !this.blockProblem) this.unverified.delete(id)
        return this.called(undefined)
      },
      inspectVerification: (id) => {
        if (!this.unverified.has(id)) return this.called({ is: 'passed' })
        if (this.verificationRuns || !this.blockProblem) return this.called({ is: 'running' })
        return this.called({ is: 'failed', reason: this.blockProblem })
      },
      inspectCopy: () => {
        if (this.copySeen) return this.called(this.copySeen)
        return this.called(this.copyProblem ? { is: 'failed', reason: this.copyProblem } : { is: 'done' })
      },
      inspectRecovery: () => this.called(this.recoverySeen ?? { is: 'promoted', ...this.recovered }),
      continueToEnd: () => this.called(undefined),
      finish: () => this.called(50_000_000),
      remove: () => this.called(undefined),
    }
  }

  get drills(): DrillDriver {
    return {
      startPages: async (id) => {
        if (this.clusters.get(id)?.process.is !== 'stopped') throw new Error('the server writes to the pages')
        this.drillJobs.set(`pages ${id}`, '')
        return this.called(undefined)
      },
      inspectPages: (id) => {
        if (!this.drillJobs.has(`pages ${id}`)) return this.called({ is: 'absent' })
        return this.called(this.pagesProblem ? { is: 'failed', reason: this.pagesProblem } : { is: 'passed' })
      },
      startContents: async (id, { query }) => {
        if (this.clusters.get(id)?.process.is === 'stopped') throw new Error('the server does not run')
        this.drillJobs.set(`contents ${id}`, query ?? '')
        return this.called(undefined)
      },
      inspectContents: (id, { query }) => {
        if (!this.drillJobs.has(`contents ${id}`)) return this.called({ is: 'absent' })
        if (this.contentsProblem) return this.called({ is: 'failed', reason: this.contentsProblem })
        return this.called({ is: 'passed', answer: query === null ? null : `answer to ${query}` })
      },
      remove: (id) => {
        this.drillJobs.delete(`pages ${id}`)
        this.drillJobs.delete(`contents ${id}`)
        return this.called(undefined)
      },
    }
  }

  get boxes(): BoxDriver {
    return {
      policiesPossible: () => this.policiesPossible,
      isolation: () => this.called({ kind: 'bubblewrap', network: 'own' } as const),
      ensureBox: (spec) => {
        if (this.boxProblem) throw new Error(this.boxProblem)
        this.boxesUp.set(spec.id, true)
        this.specs.set(spec.id, spec)
        return this.called(undefined)
      },
      inspectBox: (id) => {
        const up = this.boxesUp.get(id)
        return this.called(up === undefined ? { is: 'absent' } : up ? { is: 'up', pid: 1 } : { is: 'down' })
      },
      stopBox: (id) => {
        this.stops++
        this.boxesUp.set(id, false)
        return this.called(undefined)
      },
      removeBox: ({ id }) => {
        this.boxesUp.delete(id)
        for (const key of this.copies.keys()) if (key.startsWith(`${id}/`)) this.copies.delete(key)
        return this.called(undefined)
      },
      entry: entryToHost,
      signalCommand,
      findCommandPid,
      findCommandPath,
      startFileHelper: (_spec, ...words) => startHelper(entryToHost(), 'box/file/file.pl', words),
      startDialHelper: (_spec, { port, timeoutSeconds, targets }) =>
        startHelper(entryToHost(), 'box/enter/dial.pl', [String(port), String(timeoutSeconds), ...targets]),
      readPorts,
      addressOf: () => '127.0.0.1',
    } as Partial<BoxDriver> as BoxDriver
  }

  get checkpoints(): CheckpointDriver {
    const problem = () => this.checkpointProblem && ({ is: 'failed', reason: this.checkpointProblem } as const)
    return {
      makeCheckpoint: ({ id }, checkpoint) => {
        if (!this.boxesUp.get(id)) throw new Error('the box is down')
        const key = `${id}/${checkpoint}`
        if (!this.checkpointProblem && !this.copies.has(key)) this.copies.set(key, this.layers.get(id) ?? '')
        return this.called(problem() || ({ is: 'done' } as const))
      },
      prepareRestore: ({ id }, from, kept) => {
        const [key, copy] = [`${id}/restore~${kept}`, this.copies.get(`${id}/${from}`)]
        if (copy === undefined) throw new Error('there is no such checkpoint')
        if (!this.checkpointProblem && !this.copies.has(`${id}/${kept}`)) this.copies.set(key, copy)
        return this.called(problem() || ({ is: 'done' } as const))
      },
      swapLayers: ({ id }, kept) => {
        if (this.boxesUp.get(id)) throw new Error('the box is up')
        const prepared = this.copies.get(`${id}/restore~${kept}`)
        if (!this.copies.has(`${id}/${kept}`)) {
          this.copies.set(`${id}/${kept}`, this.layers.get(id) ?? '')
          this.layers.set(id, prepared!)
        }
        this.copies.delete(`${id}/restore~${kept}`)
        return this.called(undefined)
      },
      tidy: () => this.called(undefined),
      measureLayers: () => this.called(this.usedBytes),
      abandonCopy: ({ id }, checkpoint) => {
        this.copies.delete(`${id}/restore~${checkpoint}`)
        return this.called(undefined)
      },
      removeCheckpoint: (id, checkpoint) => {
        this.copies.delete(`${id}/${checkpoint}`)
        return this.called(undefined)
      },
    }
  }

  get volumes(): VolumeDriver {
    const gigabyte = 1024 ** 3
    return {
      enforcesSize: () => this.called(true),
      growsAtStart: () => this.called(this.disksGrowAtStart),
      ensureVolume: ({ id, sizeGb }) => {
        if (this.diskProblem) return this.called({ is: 'failed', reason: this.diskProblem } as const)
        this.disks.set(id, Math.max(sizeGb, this.disks.get(id) ?? 0))
        return this.called({ is: 'done' } as const)
      },
      extendVolume: (id, sizeGb) => {
        if (!this.disks.has(id)) throw new Error('there is no such volume')
        if (this.disksGrowAtStart) return this.called({ needsRestart: true })
        this.disks.set(id, sizeGb)
        return this.called({ needsRestart: false })
      },
      measureVolume: (id) => {
        const blocks = ((this.disks.get(id) ?? 0) * gigabyte) / 4096
        const bytesUsed = this.diskUse.get(id) ?? 409_600
        return this.disks.has(id)
          ? { blockSize: 4096, blocks, blocksFree: blocks - bytesUsed / 4096, bytesUsed }
          : undefined
      },
      ensureSnapshot: (volumeId, snapshotId) => {
        if (this.diskProblem) return this.called({ is: 'failed', reason: this.diskProblem } as const)
        this.diskCopies.set(snapshotId, volumeId)
        return this.called({ is: 'done' } as const)
      },
      measureSnapshot: () => 409_600,
      removeSnapshot: (id) => {
        this.diskCopies.delete(id)
        return this.called(undefined)
      },
      removeVolume: (id) => {
        this.disks.delete(id)
        return this.called(undefined)
      },
      mountOf: (id) => ({ source: `/volume/${id}/disk`, kind: 'image' }),
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
      archiveTail: () => this.called(this.archiveTail),
      findDescription: (id: string) => this.called(this.descriptions.get(id)),
      listBackups: (id: string) => this.called(this.described.filter(({ clusterId }) => clusterId === id)),
      describeCluster: (id: string, description: ClusterDescription) => {
        if (this.describeProblem) throw new Error(this.describeProblem)
        this.descriptions.set(id, description)
        return this.called(undefined)
      },
      listClusters: () => this.called([...new Set(this.described.map(({ clusterId }) => clusterId))]),
      removeCluster: (id: string) => {
        for (const key of this.kept) if (key.startsWith(`${id}/`)) this.kept.delete(key)
        this.descriptions.delete(id)
        return this.called(undefined)
      },
    } as unknown as Repository
  }

  /** Always the same: what is under way is known by its driver. */
  private get drivenMachines(): Pick<World, 'machines' | 'images'> {
    const called = <T>(value: T) => this.called(value)
    this.machineDrivers ??= {
      machines: this.machines.driver(called),
      images: this.images.store(called),
    }
    return this.machineDrivers
  }

  world(db: World['db']): World & Pick<LiveContext, 'readClusterLog' | 'readAuthority' | 'identityKey' | 'lookUpName'> {
    return {
      readClusterLog: (id, lines) => (this.logs.get(id) ?? []).slice(-lines),
      readAuthority: () => this.called('-----BEGIN CERTIFICATE-----\n'),
      makeCertificate: () => this.called(this.certificate),
      identityKey: async () => {
        this.key ??= generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey
        return this.key
      },
      lookUpName: () => this.called({ a: [], aaaa: [], cname: [] }),
      db,
      encryptionKey: this.encryptionKey,
      hosting: this.hosting,
      postgres: this.postgres,
      pooler: this.pooler,
      repository: this.repository,
      receiver: this.receiver,
      backups: this.backups,
      restores: this.restores,
      drills: this.drills,
      boxes: this.boxes,
      services: fakeServices(() => this.services),
      checkpoints: this.checkpoints,
      ...this.drivenMachines,
      hasPrivateNetworks: async () => true,
      homeNumber: 0,
      volumes: this.volumes,
      keep: {
        backupIntervalSeconds: 86_400,
        scrubIntervalSeconds: 604_800,
        drillIntervalSeconds: this.drillIntervalSeconds,
        pitrDays: 7,
        deletedDays: 7,
      },
    }
  }
}
