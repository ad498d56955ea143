import type {
  CopyState,
  ImportDriver,
  ImportTask,
  LiveState,
  SourceFacts,
} from '../../../src/drivers/postgres/import/driver.ts'
import { SourceError } from '../../../src/drivers/postgres/import/driver.ts'
import { FakeBackups } from './backups.ts'

/** Keeps imports in memory: what exists in the cluster, on the host and at the source. */
export class FakeImports extends FakeBackups {
  readonly forwarders = new Map<string, ImportTask>()
  readonly dumpJobs = new Set<string>()
  readonly restoreJobs = new Set<string>()
  readonly importCopies = new Set<string>()
  readonly subscriptions = new Set<string>()
  /** The slots and publications at the source. */
  readonly sourceSlots = new Set<string>()
  readonly replaced: string[] = []
  sequencesCopied = 0
  resolveProblem: SourceError | undefined
  sourceProblem: SourceError | undefined
  targetProblem: string | undefined
  subscribing = true
  sourceFacts: Partial<SourceFacts> = {}
  dumpSeen: CopyState | undefined
  restoreSeen: CopyState | undefined
  liveSeen: LiveState = { is: 'running', lagBytes: 0, lagSeconds: 0, errors: 0, transaction: '100' }

  private throughForwarder(id: string): void {
    if (!this.forwarders.has(id)) throw new Error('there is no forwarder')
    if (this.sourceProblem) throw this.sourceProblem
  }

  get imports(): ImportDriver {
    const nothing = () => this.called(undefined)
    return {
      resolve: async () => {
        if (this.resolveProblem) throw this.resolveProblem
        return this.called(['192.0.2.1'])
      },
      ensureForwarder: (id, _spec, task) => {
        this.forwarders.set(id, task)
        return nothing()
      },
      inspectSource: async (id) => {
        this.throughForwarder(id)
        const none = { extensions: [], problems: [], warnings: [] }
        return this.called({ bytes: 1000, tables: 3, ...none, ...this.sourceFacts })
      },
      findTargetProblem: () => this.called(this.targetProblem),
      startDump: async (id, _spec, task) => {
        if (task.live) {
          this.throughForwarder(id)
          this.sourceSlots.add(task.id)
        }
        this.dumpJobs.add(id)
        return nothing()
      },
      inspectDump: (id) => this.called(this.dumpSeen ?? { is: this.dumpJobs.has(id) ? 'done' : 'absent' }),
      startRestore: async (id) => {
        this.importCopies.add(id)
        this.restoreJobs.add(id)
        return nothing()
      },
      inspectRestore: (id) => this.called(this.restoreSeen ?? { is: this.restoreJobs.has(id) ? 'done' : 'absent' }),
      canSubscribe: () => this.called(this.subscribing),
      subscribe: async (id) => {
        if (!this.importCopies.has(id)) throw new Error('there is no copy')
        this.subscriptions.add(id)
        return nothing()
      },
      inspectLive: async (id) => {
        this.throughForwarder(id)
        return this.called(this.liveSeen)
      },
      copySequences: async (id) => {
        this.throughForwarder(id)
        if (this.importCopies.has(id)) this.sequencesCopied++
        return nothing()
      },
      unsubscribe: (id) => {
        this.subscriptions.delete(id)
        return nothing()
      },
      stopJobs: (id) => {
        this.dumpJobs.delete(id)
        this.restoreJobs.delete(id)
        return nothing()
      },
      cleanSource: async (id, _spec, task) => {
        this.throughForwarder(id)
        this.sourceSlots.delete(task.id)
        return nothing()
      },
      replaceTarget: async (id, database) => {
        if (this.targetProblem && this.importCopies.has(id)) throw new SourceError(this.targetProblem, false)
        if (this.importCopies.delete(id)) this.replaced.push(database)
        return nothing()
      },
      dropCopy: (id) => {
        this.importCopies.delete(id)
        this.subscriptions.delete(id)
        return nothing()
      },
      remove: (id) => {
        this.dumpJobs.delete(id)
        this.restoreJobs.delete(id)
        this.forwarders.delete(id)
        return nothing()
      },
    }
  }
}
