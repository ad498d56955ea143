// Continuous archiving: one pg_receivewal per cluster reads from a replication slot and writes all WAL into the repository
// as it is generated. It runs as a user of its own, so that the server cannot tamper with the archive, and a server that
// was taken over cannot reach anything but the archive through it.
import { archiveName } from '../../../model/postgres/spec.ts'
import { parseLsn, segmentBytes } from '../../../model/postgres/wal.ts'
import { confineService } from '../../confine/confine.ts'
import type { Home } from '../../host/home.ts'
import type { Repository } from '../../repository/driver.ts'
import type { Supervisor } from '../../s6/driver.ts'
import { clientConfinement } from '../confinement.ts'
import { clusterPaths } from '../paths.ts'
import { scriptCommand } from '../script.ts'
import { inspectProcess } from '../service.ts'
import type { SqlClient } from '../sql/driver.ts'
import { superuser } from '../sql/platform-role.ts'
import { ensureTools } from '../toolchain/tools.ts'
import { clusterUsers } from '../users.ts'
import type { ReceiverDriver, ReceiverSpec, SlotState } from './driver.ts'

export interface ReceiverParts {
  home: Home
  supervisor: Supervisor
  repository: Repository
  postgres: Pick<SqlClient, 'query'>
}

const stopTimeoutSeconds = 10
const terminateTimeoutMs = 5000

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
    inspectReceiver: (id) => inspectProcess(supervisor, clusterPaths(home, id).receiverService),
    removeReceiver: (id) => supervisor.removeService(clusterPaths(home, id).receiverService),
  }
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
    `SELECT pg_terminate_backend(active_pid, ${terminateTimeoutMs}) FROM pg_replication_slots
     WHERE slot_name = $1 AND active_pid IS NOT NULL`,
  )
  await query('SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1')
}

async function ensureReceiver({ home, supervisor, repository }: ReceiverParts, id: string, spec: ReceiverSpec) {
  const tools = await ensureTools(spec.toolchain)
  const paths = clusterPaths(home, id)
  const { keeper } = await clusterUsers(spec.uid)
  const directory = await repository.ensureArchive(id, spec.epoch, keeper?.uid)
  const receive = scriptCommand(
    'postgres/receiver/receive.sh',
    directory,
    String(segmentBytes),
    ...[
      `${tools}/pg_receivewal`,
      // It exits when the connection is lost; the supervisor then restarts it, which removes broken files first.
      '--no-loop',
      '--synchronous',
      // It reports the end of a segment only with the next status message, and until then the recovery window is stuck.
      '--status-interval=1',
      `--slot=${spec.slot}`,
      `--directory=${directory}`,
      `--host=${paths.sockets}`,
      `--port=${spec.port}`,
      `--username=${superuser}`,
      '--no-password',
    ],
  )
  const confinement = { ...clientConfinement(paths, keeper, spec.toolchain), writable: [directory] }
  await supervisor.ensureService(paths.receiverService, {
    command: await confineService(home, receive, confinement),
    env: { PGAPPNAME: archiveName },
    // On SIGINT it flushes what it has written before it exits.
    stopSignal: 'SIGINT',
    stopTimeoutSeconds,
    cgroup: spec.cgroup,
  })
}
