// Manual setups of PostgreSQL and PgBouncer, which the platform is compared with.
import { execFile, spawn } from 'node:child_process'
import { chownSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { findConfined } from '../src/drivers/confine/confine.ts'
import { endChild, freePort, ownDirectory, plainEnvironment, until } from './child.ts'
import {
  askOnce,
  type Cluster,
  type ClusterHost,
  connectAsSuperuser,
  database,
  settle,
  timeProgram,
  user,
} from './cluster.ts'
import type { Scope } from './scope.ts'

const run = promisify(execFile)
const nobody = 65_534

/** Returns the seconds that initdb and the start of the server take. */
export async function timePlainServer(scope: Scope, home: string, bin: string): Promise<number> {
  const [directory, remove] = ownDirectory(scope, home, nobody)
  const data = join(directory, 'data')
  const started = performance.now()
  await run(`${bin}/initdb`, ['-D', data], {
    uid: nobody,
    gid: nobody,
    cwd: '/',
    env: plainEnvironment(),
    timeout: 60_000,
  })
  const sockets = ['-c', 'listen_addresses=', '-c', `unix_socket_directories=${directory}`]
  const stop = await startServer(scope, bin, ['-D', data, ...sockets], data, nobody)
  const seconds = (performance.now() - started) / 1000
  await stop()
  remove()
  return seconds
}

/** Returns once the server is ready; the returned function stops it. */
export async function startServer(
  scope: Scope,
  bin: string,
  args: string[],
  data: string,
  uid: number,
): Promise<() => Promise<void>> {
  const child = spawn(`${bin}/postgres`, args, { uid, gid: uid, cwd: '/', env: plainEnvironment(), stdio: 'ignore' })
  const stop = () => endChild(child, 'SIGQUIT')
  scope.defer(stop)
  const isReady = () => {
    if (child.exitCode !== null) throw new Error(`postgres on ${data} exited with ${child.exitCode}`)
    const file = join(data, 'postmaster.pid')
    const lines = existsSync(file) ? readFileSync(file, 'utf8').split('\n') : []
    return Number(lines[0]) === child.pid && lines[7]?.trim() === 'ready'
  }
  await until(isReady, `postgres on ${data}`)
  return stop
}

const poolSettings = /^(pool_mode|max_client_conn|default_pool_size|reserve_pool_\w+|max_db_connections) = .*$/gm

/** Runs PgBouncer as the user of the cluster, so that it uses the Unix socket too. Returns its port. */
export async function startPlainPooler({ scope, home }: ClusterHost, cluster: Cluster): Promise<number> {
  const [directory] = ownDirectory(scope, home, cluster.uid)
  const port = await freePort()
  const ini = join(directory, 'pgbouncer.ini')
  const users = join(directory, 'userlist.txt')
  const sizes = readFileSync(`${cluster.directory}/pooler/pgbouncer.ini`, 'utf8').match(poolSettings) ?? []
  const settings = ['listen_addr = 127.0.0.1', `listen_port = ${port}`, 'unix_socket_dir =', `auth_file = ${users}`]
  const server = `${database} = host=${cluster.sockets} port=${cluster.directPort}`
  const lines = ['[databases]', server, '[pgbouncer]', 'auth_type = scram-sha-256', ...settings, ...sizes, '']
  writeFileSync(ini, lines.join('\n'))
  writeFileSync(users, `"${user}" "${await readSecret(scope, cluster)}"\n`)
  for (const file of [ini, users]) chownSync(file, cluster.uid, cluster.uid)
  const child = spawn('pgbouncer', [ini], {
    uid: cluster.uid,
    gid: cluster.uid,
    cwd: '/',
    env: plainEnvironment(),
    stdio: 'ignore',
  })
  scope.defer(() => endChild(child, 'SIGKILL'))
  await until(() => answers(port, cluster.password), 'PgBouncer', 10, 50)
  return port
}

async function readSecret(scope: Scope, cluster: Cluster): Promise<string> {
  const client = await connectAsSuperuser(scope, cluster)
  const { rows } = await client.query('select rolpassword from pg_authid where rolname = $1', [user])
  return rows[0].rolpassword
}

function answers(port: number, password: string): Promise<boolean> {
  return askOnce(port, password).then(
    () => true,
    () => false,
  )
}

/** Starts the server again on a copy of the data, with the command line of the cluster. Returns its port. */
export async function startCopy(host: ClusterHost, cluster: Cluster): Promise<number> {
  const { scope, home } = host
  const [directory] = ownDirectory(scope, home, cluster.uid)
  const port = await freePort()
  const data = join(directory, 'data')
  const from = ['-h', cluster.sockets, '-p', String(cluster.directPort), '-U', 'postgres']
  await timeProgram(`${cluster.tools}/pg_basebackup`, ['-D', data, '-X', 'stream', '-c', 'fast', ...from])
  await timeProgram('chown', ['-R', `${cluster.uid}:${cluster.uid}`, data])
  const changed = { port: String(port), unix_socket_directories: directory, listen_addresses: '127.0.0.1' }
  await startServer(scope, cluster.bin, serverArguments(cluster, data, changed), data, cluster.uid)
  await settle(host)
  return port
}

export function serverArguments(cluster: Cluster, data: string, changed: Record<string, string>): string[] {
  const pid = findConfined(Number(readFileSync(`${cluster.directory}/pid`, 'utf8')), 'postgres')
  const given = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0').slice(1, -1)
  const settings = given.filter(
    (word, index) => index > 0 && given[index - 1] === '-c' && !(word.split('=')[0]! in changed),
  )
  const own = Object.entries(changed).map(([name, value]) => `${name}=${value}`)
  return ['-D', data, ...[...settings, ...own].flatMap((setting) => ['-c', setting])]
}
