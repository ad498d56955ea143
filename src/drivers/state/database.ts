import { randomBytes } from 'node:crypto'
import { chmodSync, chownSync, existsSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { readTextIfPresent } from '../host/file.ts'
import type { Home } from '../host/home.ts'
import { isRoot, run, waitUntil } from '../host/process.ts'
import type { Toolchain } from '../postgres/toolchain/toolchain.ts'
import type { Supervisor } from '../s6/supervisor.ts'

export interface StateDatabase {
  /** The directory of the socket, which `pg` takes for a host. */
  host: string
  port: number
  user: string
  database: string
}

export interface StateDatabaseParts {
  home: Home
  supervisor: Supervisor
  toolchain: Toolchain
}

const service = 'state-database'
const name = 'berth'
// Only part of the socket's name: nothing listens on TCP.
const port = 5432
const startSeconds = 60

const settings = {
  listen_addresses: '',
  shared_buffers: '32MB',
  max_connections: '100',
  wal_level: 'minimal',
  max_wal_senders: '0',
  fsync: 'on',
  synchronous_commit: 'on',
  jit: 'off',
  huge_pages: 'off',
  timezone: 'UTC',
  // The log puts the time before each line.
  log_line_prefix: '[%p] ',
}

/** Makes the platform's own PostgreSQL run and waits until it takes connections. */
export async function ensureStateDatabase({ home, supervisor, toolchain }: StateDatabaseParts): Promise<StateDatabase> {
  const data = `${home.state}/data`
  const socketDirectory = `${home.run}/state`
  const uid = isRoot() ? home.uidStart : undefined
  if (!existsSync(data)) await createData(home.state, data, toolchain, uid)
  ensureSocketDirectory(socketDirectory, uid)
  const options = { ...settings, port: String(port), unix_socket_directories: socketDirectory }
  await supervisor.ensureService(service, {
    command: [
      `${toolchain.bin}/postgres`,
      '-D',
      data,
      ...Object.entries(options).flatMap(([k, v]) => ['-c', `${k}=${v}`]),
    ],
    uid,
    stopSignal: 'SIGINT',
    stopTimeoutSeconds: 30,
    beforeStart: [clearStaleLocks(data, `${socketDirectory}/.s.PGSQL.${port}.lock`)],
  })
  await waitUntilReady(supervisor, data)
  return { host: socketDirectory, port, user: name, database: name }
}

// The directory is the gate: who may enter it may connect, which is its owner and root.
function ensureSocketDirectory(directory: string, uid: number | undefined): void {
  mkdirSync(directory, { recursive: true, mode: 0o700 })
  chmodSync(directory, 0o700)
  if (uid !== undefined) chownSync(directory, uid, uid)
}

async function createData(parent: string, data: string, toolchain: Toolchain, uid: number | undefined): Promise<void> {
  const fresh = `${parent}/.new~${randomBytes(6).toString('hex')}`
  // initdb wants a name for its user, which the uids of a home do not have.
  const maker = uid === undefined ? undefined : await findUid('nobody')
  try {
    mkdirSync(fresh, { mode: 0o700 })
    if (maker !== undefined) chownSync(fresh, maker, maker)
    await fillData(fresh, toolchain, maker)
    if (uid !== undefined) await run('chown', ['-R', `${uid}:${uid}`, fresh])
    // Only now, because a process of nobody could have put a link in its place.
    writeFileSync(`${fresh}/pg_hba.conf`, 'local all all trust\n')
    renameSync(fresh, data)
  } catch (cause) {
    rmSync(fresh, { recursive: true, force: true })
    // Another process was first, and both made the same.
    if (!existsSync(data)) throw new Error('create the state database', { cause })
  }
}

async function fillData(directory: string, toolchain: Toolchain, uid: number | undefined): Promise<void> {
  const locale = ['--locale=C.UTF-8', '--locale-provider=builtin', '--builtin-locale=C.UTF-8']
  const kind = ['--username', name, '--auth=trust', '--encoding=UTF8', '--data-checksums', '--no-instructions']
  await run(`${toolchain.bin}/initdb`, ['-D', directory, ...kind, ...locale], { uid })
  // Made before anybody can connect, so that a data directory in its place always has its database.
  await run(`${toolchain.bin}/postgres`, ['--single', '-D', directory, '-c', 'exit_on_error=on', 'postgres'], {
    uid,
    input: `CREATE DATABASE ${name}\n`,
  })
}

async function findUid(user: string): Promise<number> {
  const { stdout } = await run('id', ['-u', user])
  return Number(stdout)
}

/**
 * A command to run before PostgreSQL. After a reboot the process that a lock file names may be a stranger with the same
 * uid, and a crash can leave the file empty: PostgreSQL refuses both for ever. Such a file goes away, but only when no
 * process works in the data directory, as every process of a PostgreSQL does. Those whose server is gone are ended: one
 * that does not notice, in the middle of a long query for example, keeps the next server from starting.
 */
export function clearStaleLocks(data: string, socketLock: string): string[] {
  const script = `
    data=$1
    for lock in "$data/postmaster.pid" "$2"; do
      [ -e "$lock" ] || continue
      pid=$(head -n 1 "$lock" | tr -d ' -')
      if [ -n "$pid" ] && ! kill -0 "$pid" 2>/dev/null; then
        for directory in /proc/[0-9]*/cwd; do
          process=\${directory%/cwd}
          [ "$directory" -ef "$data" ] || continue
          if [ "$(cat "$process/comm" 2>/dev/null)" = postgres ]; then kill -9 "\${process#/proc/}" || :; fi
        done
        continue
      fi
      for directory in /proc/[0-9]*/cwd; do
        if [ "$directory" -ef "$data" ]; then exit 0; fi
      done
      rm -f "$lock"
    done`
  return ['/bin/sh', '-c', script, 'clear-stale-locks', data, socketLock]
}

async function waitUntilReady(supervisor: Supervisor, data: string): Promise<void> {
  const isReady = async () => {
    const pid = findReadyPid(data)
    if (pid === undefined) return false
    const state = await supervisor.inspectService(service)
    // The file of a server that was killed says "ready" as well.
    return state.is === 'up' && state.pid === pid
  }
  if (await waitUntil(isReady, startSeconds)) return
  const log = supervisor.readLog(service, 15).join('\n')
  throw new Error(`start the state database: not ready after ${startSeconds} s. Its log ends with:\n${log}`)
}

/** PostgreSQL keeps its pid in the first line of this file and what it is doing in the eighth. */
function findReadyPid(data: string): number | undefined {
  const lines = readTextIfPresent(`${data}/postmaster.pid`)?.split('\n') ?? []
  return lines[7]?.trim() === 'ready' ? Number(lines[0]) : undefined
}
