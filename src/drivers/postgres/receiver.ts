// The continuous archive: one pg_receivewal for each cluster, which holds a replication slot and writes every byte of the
// write-ahead log into the repository as soon as the cluster has it. It belongs to the platform, out of the cluster's reach.
import { type Lsn, parseLsn, segmentBytes } from '../../model/postgres/wal.ts'
import type { Home } from '../host/home.ts'
import type { Repository } from '../repository/driver.ts'
import type { Supervisor } from '../s6/supervisor.ts'
import { clusterPaths } from './paths.ts'
import type { PostgresDriver } from './server.ts'
import { superuser } from './template.ts'
import type { Toolchain } from './toolchain/toolchain.ts'
import { ensureTools } from './toolchain/tools.ts'

export interface ReceiverSpec {
  /** Each epoch has its own directory and its own slot. */
  epoch: number
  slot: string
  toolchain: Toolchain
  port: number
  cgroup?: string[] | undefined
}

export type SlotState =
  | { is: 'absent' }
  /** Segments that the receiver had not read yet are gone: the archive has a hole, and the epoch is over. */
  | { is: 'lost' }
  | { is: 'ok'; active: boolean; restartLsn?: Lsn; flushLsn?: Lsn }

export type ReceiverState = { is: 'absent' } | { is: 'stopped'; log: string[] } | { is: 'running'; pid: number }

export interface ReceiverDriver {
  /** The cluster keeps its log from now on until the receiver has it. */
  ensureSlot(id: string, slot: string): Promise<void>
  /** `flushLsn` is how far the archive holds the log durably; it is there while the receiver is connected. */
  inspectSlot(id: string, slot: string): Promise<SlotState>
  /** Also when a receiver still reads from it. */
  dropSlot(id: string, slot: string): Promise<void>
  /** Afterwards the receiver runs by this spec or is about to; a changed one means a restart. */
  ensureReceiver(id: string, spec: ReceiverSpec): Promise<void>
  inspectReceiver(id: string): Promise<ReceiverState>
  removeReceiver(id: string): Promise<void>
}

export interface ReceiverParts {
  home: Home
  supervisor: Supervisor
  repository: Repository
  postgres: Pick<PostgresDriver, 'query'>
}

/** How the receiver calls itself to the cluster, which may be told to wait for it. */
export const archiveName = 'berth-archive'

const logLines = 20
const stopSeconds = 10
const terminateMs = 5000

export function receiverDriver(parts: ReceiverParts): ReceiverDriver {
  const { home, supervisor, postgres } = parts
  return {
    async ensureSlot(id, slot) {
      const missing = 'NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)'
      await postgres.query(id, superuser, `SELECT pg_create_physical_replication_slot($1, true) WHERE ${missing}`, [
        slot,
      ])
    },
    inspectSlot: (id, slot) => inspectSlot(postgres, id, slot),
    dropSlot: (id, slot) => dropSlot(postgres, id, slot),
    ensureReceiver: (id, spec) => ensureReceiver(parts, id, spec),
    inspectReceiver: (id) => inspectReceiver(supervisor, serviceOf(home, id)),
    removeReceiver: (id) => supervisor.removeService(serviceOf(home, id)),
  }
}

// Through the paths of the cluster, which refuse what is no id.
function serviceOf(home: Home, id: string): string {
  return `wal-${clusterPaths(home, id).service.slice('pg-'.length)}`
}

interface SlotRow extends Record<string, unknown> {
  lost: boolean
  active: boolean
  restart_lsn: string | null
  flush_lsn: string | null
}

async function inspectSlot(postgres: ReceiverParts['postgres'], id: string, slot: string): Promise<SlotState> {
  const [row] = await postgres.query<SlotRow>(
    id,
    superuser,
    `SELECT coalesce(s.wal_status = 'lost', false) AS lost, s.active, s.restart_lsn::text, r.flush_lsn::text
     FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
     WHERE s.slot_name = $1`,
    [slot],
  )
  if (row === undefined) return { is: 'absent' }
  if (row.lost) return { is: 'lost' }
  return {
    is: 'ok',
    active: row.active,
    ...(row.restart_lsn !== null && { restartLsn: parseLsn(row.restart_lsn) }),
    ...(row.flush_lsn !== null && { flushLsn: parseLsn(row.flush_lsn) }),
  }
}

async function dropSlot(postgres: ReceiverParts['postgres'], id: string, slot: string): Promise<void> {
  const query = (text: string) => postgres.query(id, superuser, text, [slot])
  await query(
    `SELECT pg_terminate_backend(active_pid, ${terminateMs}) FROM pg_replication_slots
     WHERE slot_name = $1 AND active_pid IS NOT NULL`,
  )
  await query('SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1')
}

async function ensureReceiver({ home, supervisor, repository }: ReceiverParts, id: string, spec: ReceiverSpec) {
  const tools = await ensureTools(spec.toolchain)
  const directory = await repository.ensureArchive(id, spec.epoch)
  await supervisor.ensureService(serviceOf(home, id), {
    command: [
      `${tools}/pg_receivewal`,
      // The supervisor starts it again, and by that its start is the only way in which it begins.
      '--no-loop',
      '--synchronous',
      // At the end of a segment it reports only with the next status, and until then the recovery window stands still.
      '--status-interval=1',
      `--slot=${spec.slot}`,
      `--directory=${directory}`,
      `--host=${clusterPaths(home, id).sockets}`,
      `--port=${spec.port}`,
      `--username=${superuser}`,
      '--no-password',
    ],
    env: { PGAPPNAME: archiveName },
    // It then ends with what it has written made durable.
    stopSignal: 'SIGINT',
    stopTimeoutSeconds: stopSeconds,
    beforeStart: [removeBrokenPartials(directory)],
    cgroup: spec.cgroup,
  })
}

// A disk that was full while a new segment was filled with zeros leaves one that holds no data and that pg_receivewal
// refuses at every later start.
function removeBrokenPartials(directory: string): string[] {
  const script = `
    for file in "$1"/*.partial; do
      [ -e "$file" ] || continue
      size=$(stat -c %s "$file")
      [ "$size" -eq 0 ] || [ "$size" -eq "$2" ] || rm -v "$file"
    done`
  return ['/bin/sh', '-c', script, 'remove-broken-partials', directory, String(segmentBytes)]
}

async function inspectReceiver(supervisor: Supervisor, service: string): Promise<ReceiverState> {
  const state = await supervisor.inspectService(service)
  if (state.is === 'absent') return { is: 'absent' }
  if (state.is === 'down') return { is: 'stopped', log: supervisor.readLog(service, logLines) }
  return { is: 'running', pid: state.pid }
}
