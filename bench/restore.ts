import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import type pg from 'pg'
import { until } from './child.ts'
import {
  type Backup,
  backupDirectory,
  type Cluster,
  type ClusterHost,
  call,
  connectAsSuperuser,
  createCluster,
  fill,
  listBackups,
  openClusterHost,
  removeCluster,
  restorePhase,
  settle,
  startBackup,
  startWriteLoad,
  timeProgram,
  waitForBackup,
  waitUntilReady,
} from './cluster.ts'
import { group, type Measurement, median, type Ratio, rangeText, repeat } from './framework.ts'
import { timePlainReplay, timeReplay, writeLog } from './replay.ts'
import type { Scope } from './scope.ts'
import { inTurn, isDisturbed } from './turn.ts'

export interface Source {
  cluster: Cluster
  backup: Backup
}

interface Fixture extends ClusterHost {
  big: Source
  busy: Source
  small: Source
  /** Measured by the first benchmark that needs them. */
  lags?: Promise<number[]>
}

// Scales of pgbench; each unit is about 15 MB.
const bigScale = 65
const busyScale = 16
const smallScale = 2

const fixedSeconds = 0.5
const rounds = 3
const lagSamples = 200
const restoresBeside = 5

export const restore = [
  group<Fixture>({
    setUp,
    benchmarks: [
      {
        name: 'restore-1gb',
        title: `time to restore about 1 GB until ready, minus ${fixedSeconds} s`,
        target: { atMost: 1.3 },
        async run(host) {
          const ratio = await inTurn(
            rounds,
            () => timeRestore(host, host.big),
            () => timeDurableCopy(host, host.big),
            (ours, theirs) => (ours - fixedSeconds) / theirs,
          )
          return timeRatio(ratio, host.big, 'cp -a of the same backup and sync -f')
        },
      },
      {
        name: 'restore-50mb',
        title: 'time to restore about 50 MB until ready',
        target: { atMost: 1.2 },
        async run(host) {
          const disturbed = await isDisturbed()
          const times = await repeat(5, () => timeRestore(host, host.small))
          const note = `5 restores of ${megabytes(host.small)} MB, ${rangeText(times, 2)} s`
          return { value: median(times), unit: 's', reference: '', note, disturbed }
        },
      },
      {
        name: 'restore-earliest',
        title: 'time to restore the earliest time of a cluster that has written about 1 GB since',
        target: { atMost: 1.3 },
        run: compareEarliest,
      },
      {
        name: 'backup-1gb',
        title: 'time to back up about 1 GB of an idle cluster until completed and verified',
        target: { atMost: 1.35 },
        async run(host) {
          const ratio = await inTurn(
            rounds,
            () => timeBackup(host, host.big),
            () => timePlainBackup(host, host.big),
          )
          return timeRatio(ratio, host.big, 'pg_basebackup with its own sync')
        },
      },
      {
        name: 'restore-answer',
        title: `response time of POST restore while ${restoresBeside} restores of 1 GB run`,
        target: { atMost: 50 },
        run: restoreAnswers,
      },
      {
        name: 'archive-lag',
        title: 'time from a commit until it is durable in the repository, under pgbench, median',
        target: { atMost: 5 },
        run: async (host) => lagMeasurement(await commitLags(host), 0.5),
      },
      {
        name: 'archive-lag-p99',
        title: 'time from a commit until it is durable in the repository, under pgbench, 99th percentile',
        target: { atMost: 50 },
        run: async (host) => lagMeasurement(await commitLags(host), 0.99),
      },
      {
        name: 'backup-beside-load',
        title: 'pgbench during a backup, transactions/s',
        target: { atLeast: 0.8 },
        run: loadDuringBackup,
      },
      {
        name: 'restore-replay',
        title: 'rate of WAL replay in a restore',
        target: { atLeast: 0.8 },
        run: compareReplay,
      },
    ],
  }),
]

async function setUp(scope: Scope): Promise<Fixture> {
  const host = await openClusterHost(scope)
  const small = await makeSource(host, smallScale)
  const busy = await makeSource(host, busyScale)
  const big = await makeSource(host, bigScale)
  return { ...host, small, busy, big }
}

export async function makeSource(host: ClusterHost, scale: number): Promise<Source> {
  const cluster = await createCluster(host, '17')
  await waitForBackup(host, cluster.id)
  await fill(cluster, scale)
  await startBackup(host, cluster.id)
  return { cluster, backup: await waitForBackup(host, cluster.id) }
}

export function requestRestore(host: ClusterHost, { cluster, backup }: Source): Promise<string> {
  return requestTarget(host, cluster, { backup_id: backup.id })
}

async function requestTarget({ platform }: ClusterHost, { id }: Cluster, target: object): Promise<string> {
  return (await call<{ id: string }>(platform, 'POST', `/v1/postgres/${id}/restore`, target)).id
}

/** Returns seconds. */
export function timeRestore(host: ClusterHost, { cluster, backup }: Source): Promise<number> {
  return timeTarget(host, cluster, { backup_id: backup.id })
}

async function timeTarget(host: ClusterHost, cluster: Cluster, target: object): Promise<number> {
  await settle(host)
  const started = performance.now()
  const id = await requestTarget(host, cluster, target)
  await waitUntilReady(host, id, 120)
  const seconds = (performance.now() - started) / 1000
  await removeCluster(host, id)
  return seconds
}

/** The earliest time is the end of the first backup, which is small: it was made before the cluster was filled. */
async function compareEarliest(host: Fixture): Promise<Measurement> {
  const { cluster } = host.big
  const path = `/v1/postgres/${cluster.id}`
  const { recovery_window: window } = await call<{ recovery_window: { earliest: string } }>(host.platform, 'GET', path)
  const first = (await listBackups(host, cluster.id)).at(-1)!
  const ratio = await inTurn(
    rounds,
    () => timeTarget(host, cluster, { pitr_time: window.earliest }),
    () => timeTarget(host, cluster, { backup_id: first.id }),
  )
  return timeRatio(ratio, { cluster, backup: first }, 'the restore of the first backup by its label')
}

async function timeDurableCopy(host: ClusterHost, { cluster, backup }: Source): Promise<number> {
  const copy = join(host.home, 'bench-copy')
  await settle(host)
  try {
    const copied = await timeProgram('cp', ['-a', backupDirectory(host, cluster, backup), copy])
    return copied + (await timeProgram('sync', ['-f', copy]))
  } finally {
    rmSync(copy, { recursive: true, force: true })
  }
}

async function timeBackup(host: ClusterHost, { cluster }: Source): Promise<number> {
  await settle(host)
  const started = performance.now()
  await startBackup(host, cluster.id)
  await waitForBackup(host, cluster.id)
  return (performance.now() - started) / 1000
}

async function timePlainBackup(host: ClusterHost, { cluster }: Source): Promise<number> {
  const copy = join(host.home, 'bench-base')
  await settle(host)
  try {
    const from = ['-h', cluster.sockets, '-p', String(cluster.directPort), '-U', 'postgres']
    return await timeProgram(`${cluster.tools}/pg_basebackup`, ['-D', copy, '-X', 'none', '-c', 'fast', ...from])
  } finally {
    rmSync(copy, { recursive: true, force: true })
  }
}

function timeRatio(
  { median, measured, reference, note, disturbed }: Ratio,
  source: Source,
  against: string,
): Measurement {
  const times = `${measured.toFixed(2)} and ${reference.toFixed(2)} s for ${megabytes(source)} MB`
  return { value: median, unit: '×', reference: against, note: `${times}; ${note}`, disturbed }
}

export function megabytes({ backup }: Source): string {
  return (backup.size_bytes / 2 ** 20).toFixed(0)
}

async function restoreAnswers(host: Fixture): Promise<Measurement> {
  await settle(host)
  const disturbed = await isDisturbed()
  const running = await Promise.all(Array.from({ length: restoresBeside }, () => requestRestore(host, host.big)))
  for (const id of running) await until(async () => (await restorePhase(host, id)) !== 'waiting', `restore ${id}`)
  const times = await repeat(20, () => timeAnswer(host))
  const phases = await Promise.all(running.map((id) => restorePhase(host, id)))
  for (const id of running) await removeCluster(host, id)
  const unfinished = phases.filter((phase) => phase !== 'done' && phase !== 'failed').length
  const note = `20 requests, ${rangeText(times, 1)} ms; ${unfinished} of ${restoresBeside} were still running after the last one`
  return { value: median(times), unit: 'ms', reference: '', note, disturbed }
}

async function timeAnswer(host: Fixture): Promise<number> {
  const started = performance.now()
  const id = await requestRestore(host, host.small)
  const millis = performance.now() - started
  await call(host.platform, 'DELETE', `/v1/postgres/${id}`)
  return millis
}

function commitLags(fixture: Fixture): Promise<number[]> {
  fixture.lags ??= takeLags(fixture)
  return fixture.lags
}

async function takeLags({ scope, busy }: Fixture): Promise<number[]> {
  const client = await connectAsSuperuser(scope, busy.cluster)
  await client.query('create table bench_commit (at timestamptz)')
  const load = startWriteLoad(scope, busy.cluster)
  try {
    await until(() => load.seconds.length >= 2, 'pgbench', 20)
    return await repeat(lagSamples, () => lagMillis(client))
  } finally {
    await load.stop()
  }
}

/** Returns the time from the response to the commit until the archive slot has moved past it, including the poll. */
async function lagMillis(client: pg.Client): Promise<number> {
  await pause(10 + Math.random() * 20)
  await client.query('insert into bench_commit values (clock_timestamp())')
  const started = performance.now()
  const { rows } = await client.query<{ lsn: string }>('select pg_current_wal_flush_lsn()::text as lsn')
  const isDurable = async () => {
    const text = `select coalesce(bool_or(restart_lsn >= $1::pg_lsn), false) as durable
                  from pg_replication_slots where slot_name like 'berth%'`
    return (await client.query({ name: 'durable', text, values: [rows[0]!.lsn] })).rows[0].durable as boolean
  }
  while (!(await isDurable())) if (performance.now() - started > 10_000) throw new Error('not archived after 10 s')
  return performance.now() - started
}

function lagMeasurement(lags: number[], share: number): Measurement {
  const sorted = lags.toSorted((a, b) => a - b)
  const value = sorted[Math.ceil(sorted.length * share) - 1]!
  const note = `${lags.length} commits, ${rangeText(lags, 1)} ms; measured while pgbench runs with 4 clients`
  return { value, unit: 'ms', reference: '', note }
}

const warmUpSeconds = 3
const beforeSeconds = 8

async function loadDuringBackup(host: Fixture): Promise<Measurement> {
  const { scope, busy } = host
  await settle(host)
  const disturbed = await isDisturbed()
  const load = startWriteLoad(scope, busy.cluster)
  try {
    await until(() => load.seconds.length >= warmUpSeconds + beforeSeconds, 'pgbench', 30, 20)
    const asked = performance.now()
    await startBackup(host, busy.cluster.id)
    await waitForBackup(host, busy.cluster.id)
    const completed = performance.now()
    const before = load.seconds.slice(warmUpSeconds).filter(({ at }) => at <= asked)
    const during = load.seconds.filter(({ at }) => at > asked + 500 && at <= completed)
    const [rate, reference] = [meanRate(during), meanRate(before)]
    const seconds = ((completed - asked) / 1000).toFixed(1)
    const note = `${rate.toFixed(0)} and ${reference.toFixed(0)} transactions/s; the backup of ${megabytes(busy)} MB took ${seconds} s`
    return { value: rate / reference, unit: '×', reference: 'the seconds before the backup', note, disturbed }
  } finally {
    await load.stop()
  }
}

async function compareReplay(host: Fixture): Promise<Measurement> {
  const { cluster } = host.busy
  const { target, megabytes } = await writeLog(host, cluster)
  const ratio = await inTurn(
    rounds,
    () => timeReplay(host, cluster, target),
    () => timePlainReplay(host, cluster, target),
    (ours, theirs) => theirs / ours,
  )
  const times = `${ratio.measured.toFixed(2)} and ${ratio.reference.toFixed(2)} s for ${megabytes} MB of WAL`
  const reference = 'PostgreSQL with cp as its restore_command'
  return { value: ratio.median, unit: '×', reference, note: `${times}; ${ratio.note}`, disturbed: ratio.disturbed }
}

function meanRate(seconds: { rate: number }[]): number {
  return seconds.reduce((sum, { rate }) => sum + rate, 0) / seconds.length
}
