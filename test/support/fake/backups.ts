import type { BackupDriver, BackupState } from '../../../src/drivers/postgres/backup/driver.ts'
import type { DrillDriver } from '../../../src/drivers/postgres/drill/driver.ts'
import type { CopyState, RecoveryState, RestoreDriver } from '../../../src/drivers/postgres/restore/driver.ts'
import type { UpgradeDriver, UpgradeJobState } from '../../../src/drivers/postgres/upgrade/driver.ts'
import { FakePostgres } from './postgres.ts'

/** Keeps backups, restores and drills in memory. */
export class FakeBackups extends FakePostgres {
  readonly staged = new Map<string, string>()
  backupProblem: string | undefined
  copyProblem: string | undefined
  /** Replace the results of inspections, for tests of operations in progress. */
  backupSeen: BackupState | undefined
  copySeen: CopyState | undefined
  recoverySeen: RecoveryState | undefined
  readonly recovered = { endLsn: '0/3000000', timeline: 2, replayedUntil: '2026-11-01 10:59:00.123+00' }
  /** Whether copies are reflinks of trusted backups, which are verified later; `blockProblem` makes that fail. */
  reflinks = false
  readonly unverified = new Set<string>()
  verificationRuns = false
  blockProblem: string | undefined
  readonly scrubs = new Map<string, string>()
  scrubProblem: string | undefined
  /** The files that each scrub of WAL reads, and a file that is damaged. */
  readonly logScrubs = new Map<string, string[]>()
  alteredFile: string | undefined
  pagesProblem: string | undefined
  contentsProblem: string | undefined
  readonly drillJobs = new Map<string, string>()
  drillIntervalSeconds: number | null = 86_400
  readonly upgradeJobs = new Map<string, UpgradeJobState>()
  /** What the job of a major upgrade shows; it is done otherwise. */
  upgradeSeen: UpgradeJobState = { is: 'done' }
  /** The major versions of data directories, where an upgrade has changed them. */
  readonly upgradedTo = new Map<string, string>()

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
      startLogScrub: (id, { files }) => {
        this.logScrubs.set(
          id,
          files.map(({ name }) => name),
        )
        return nothing()
      },
      inspectLogScrub: (id) => {
        const files = this.logScrubs.get(id)
        if (files === undefined) return this.called({ is: 'absent' })
        const damaged = files.find((file) => file === this.alteredFile)
        if (damaged === undefined) return this.called({ is: 'passed', file: files.at(-1)! })
        return this.called({ is: 'failed', file: damaged, kind: 'damaged', reason: 'differs from its recorded digest' })
      },
      removeScrub: (id) => {
        this.logScrubs.delete(id)
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

  get upgrades(): UpgradeDriver {
    return {
      startUpgrade: async (id) => {
        if (this.clusters.get(id)?.process.is !== 'stopped') throw new Error('the server uses the data directory')
        this.upgradeJobs.set(id, this.upgradeSeen)
        return this.called(undefined)
      },
      inspectUpgrade: (id, { target }) => {
        const job = this.upgradeJobs.get(id)
        if (job?.is === 'done') this.upgradedTo.set(id, target.major)
        if (this.upgradedTo.get(id) === target.major) return this.called({ is: 'done' })
        return this.called(job ?? { is: 'absent' })
      },
      stopUpgrade: (id) => {
        this.upgradeJobs.delete(id)
        return this.called(undefined)
      },
      removeUpgrade: (id) => {
        this.upgradeJobs.delete(id)
        return this.called(undefined)
      },
    }
  }
}
