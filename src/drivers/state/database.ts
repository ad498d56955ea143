import { randomBytes } from 'node:crypto'
import { chmodSync, chownSync, existsSync, mkdirSync, renameSync, rmSync } from 'node:fs'
import { waitUntil } from '../../model/poll.ts'
import type { Toolchain } from '../../model/postgres/toolchain.ts'
import { edgeUid, type Home } from '../host/home.ts'
import { withoutNewPrivileges } from '../host/privilege.ts'
import { isRoot, run } from '../host/process.ts'
import type { Supervisor } from '../s6/driver.ts'
import { controlRole, ensureAccessFiles } from './access.ts'
import { clearStaleLocks, findReadyPid } from './postmaster.ts'

export interface StateDatabase {
  /** The directory of the Unix socket, which `pg` accepts as a host. */
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
const name = controlRole
// The port is only part of the socket's name; the server does not listen on TCP.
const port = 5432
const startTimeoutSeconds = 60

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
  // s6-log adds the time to each line.
  log_line_prefix: '[%p] ',
}

/** Starts the PostgreSQL server of the platform itself and waits until it accepts connections. */
export async function ensureStateDatabase({ home, supervisor, toolchain }: StateDatabaseParts): Promise<StateDatabase> {
  const data = `${home.state}/data`
  const socketDirectory = `${home.run}/state`
  const uid = isRoot() ? home.uidStart : undefined
  if (!existsSync(data)) await createData(home.state, data, toolchain, uid)
  ensureSocketDirectory(socketDirectory, home)
  const { hbaFile, identFile, isChanged } = ensureAccessFiles(home)
  const options = {
    ...settings,
    hba_file: hbaFile,
    ident_file: identFile,
    port: String(port),
    unix_socket_directories: socketDirectory,
  }
  const wasUp = (await supervisor.inspectService(service)).is === 'up'
  await supervisor.ensureService(service, {
    command: withoutNewPrivileges([
      `${toolchain.bin}/postgres`,
      '-D',
      data,
      ...Object.entries(options).flatMap(([k, v]) => ['-c', `${k}=${v}`]),
    ]),
    uid,
    stopSignal: 'SIGINT',
    stopTimeoutSeconds: 30,
    beforeStart: [clearStaleLocks(data, socketDirectory, port), closeOwnAccessFile(data)],
  })
  await waitUntilReady(supervisor, data)
  if (isChanged && wasUp) await supervisor.signalService(service, 'SIGHUP')
  return { host: socketDirectory, port, user: name, database: name }
}

/** Only root, the server and the edge can enter it; the access files decide who may log in as which role. */
function ensureSocketDirectory(directory: string, home: Home): void {
  mkdirSync(directory, { recursive: true, mode: 0o700 })
  chmodSync(directory, isRoot() ? 0o710 : 0o700)
  if (isRoot()) chownSync(directory, home.uidStart, edgeUid(home))
}

/** The server does not use this file, but older versions left lines in it that trust everyone. */
function closeOwnAccessFile(data: string): string[] {
  return ['/bin/sh', '-c', 'echo local all all reject > "$1/pg_hba.conf"', 'close-access', data]
}

async function createData(parent: string, data: string, toolchain: Toolchain, uid: number | undefined): Promise<void> {
  const fresh = `${parent}/.new~${randomBytes(6).toString('hex')}`
  // initdb requires a user with a name, which the uids of a home do not have.
  const creator = uid === undefined ? undefined : await findUid('nobody')
  try {
    mkdirSync(fresh, { mode: 0o700 })
    if (creator !== undefined) chownSync(fresh, creator, creator)
    await initializeData(fresh, toolchain, creator)
    if (uid !== undefined) await run('chown', ['-R', `${uid}:${uid}`, fresh])
    renameSync(fresh, data)
  } catch (cause) {
    rmSync(fresh, { recursive: true, force: true })
    // Another process may have created it first, which is just as good.
    if (!existsSync(data)) throw new Error('create the state database', { cause })
  }
}

async function initializeData(directory: string, toolchain: Toolchain, uid: number | undefined): Promise<void> {
  const locale = ['--locale=C.UTF-8', '--locale-provider=builtin', '--builtin-locale=C.UTF-8']
  const options = ['--username', name, '--auth=reject', '--encoding=UTF8', '--data-checksums', '--no-instructions']
  await run(`${toolchain.bin}/initdb`, ['-D', directory, ...options, ...locale], { uid })
  // Created before the directory gets its final name, so that an existing data directory always has the database.
  await run(`${toolchain.bin}/postgres`, ['--single', '-D', directory, '-c', 'exit_on_error=on', 'postgres'], {
    uid,
    input: `CREATE DATABASE ${name}\n`,
  })
}

async function findUid(user: string): Promise<number> {
  const { stdout } = await run('id', ['-u', user])
  return Number(stdout)
}

async function waitUntilReady(supervisor: Supervisor, data: string): Promise<void> {
  const isReady = async () => {
    const pid = findReadyPid(data)
    if (pid === undefined) return false
    const state = await supervisor.inspectService(service)
    return state.is === 'up' && state.pid === pid
  }
  if (await waitUntil(isReady, startTimeoutSeconds)) return
  const log = supervisor.readLog(service, 15).join('\n')
  throw new Error(`start the state database: not ready after ${startTimeoutSeconds} s. Its log ends with:\n${log}`)
}
