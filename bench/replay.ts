// WAL replay from the start of a server until it accepts writes, in a restored cluster and in PostgreSQL alone.
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { serverArguments, startServer } from './by-hand.ts'
import { freePort, ownDirectory, until } from './child.ts'
import {
  backupDirectory,
  type Cluster,
  type ClusterHost,
  call,
  connectAsSuperuser,
  fill,
  listBackups,
  removeCluster,
  settle,
  startWriteLoad,
  timeProgram,
  waitUntilReady,
} from './cluster.ts'

const loadScale = 30
const loadSeconds = 5

/** Writes and archives a few hundred megabytes of WAL after the newest backup, and returns a time at its end. */
export async function writeLog(host: ClusterHost, cluster: Cluster): Promise<{ target: string; megabytes: number }> {
  const client = await connectAsSuperuser(host.scope, cluster)
  const ask = async (text: string) => (await client.query(text)).rows[0].answer as string
  const start = await ask('select pg_current_wal_lsn()::text as answer')
  await fill(cluster, loadScale)
  const load = startWriteLoad(host.scope, cluster)
  await until(() => load.seconds.length >= loadSeconds, 'pgbench', 30, 20)
  await load.stop()
  const target = await ask('select to_json(clock_timestamp()) #>> array[]::text[] as answer')
  const bytes = Number(await ask(`select pg_current_wal_lsn() - '${start}'::pg_lsn as answer`))
  // Recovery to a time ends at the first later commit. PostgreSQL alone can only fetch complete segments.
  await pause(100)
  await client.query('create table if not exists bench_target ()')
  await client.query('select pg_switch_wal()')
  await until(() => isInWindow(host, cluster, target), 'the recovery window', 30, 50)
  await settle(host)
  return { target, megabytes: Math.round(bytes / 2 ** 20) }
}

async function isInWindow({ platform }: ClusterHost, { id }: Cluster, target: string): Promise<boolean> {
  const view = await call<{ recovery_window: { latest: string } | null }>(platform, 'GET', `/v1/postgres/${id}`)
  return view.recovery_window !== null && Date.parse(view.recovery_window.latest) > Date.parse(target)
}

/** Returns seconds. */
export async function timeReplay(host: ClusterHost, source: Cluster, target: string): Promise<number> {
  const body = { pitr_time: target }
  const { id } = await call<{ id: string }>(host.platform, 'POST', `/v1/postgres/${source.id}/restore`, body)
  const file = `${host.home}/clusters/${id}/data/postmaster.pid`
  await until(() => existsSync(file), `the server of ${id}`, 60, 2)
  const started = performance.now()
  await until(() => readFileSync(file, 'utf8').split('\n')[7]?.trim() === 'ready', `recovery of ${id}`, 60, 2)
  const seconds = (performance.now() - started) / 1000
  await waitUntilReady(host, id)
  await removeCluster(host, id)
  return seconds
}

export async function timePlainReplay(host: ClusterHost, source: Cluster, target: string): Promise<number> {
  const [directory, remove] = ownDirectory(host.scope, host.home, source.uid)
  const data = join(directory, 'data')
  const [newest] = await listBackups(host, source.id)
  await timeProgram('cp', ['-a', backupDirectory(host, source, newest!), data])
  await timeProgram('cp', ['-a', archiveOf(host, source), join(directory, 'archive')])
  writeFileSync(join(data, 'recovery.signal'), '')
  await timeProgram('chown', ['-R', `${source.uid}:${source.uid}`, directory])
  await settle(host)
  const args = serverArguments(source, data, {
    port: String(await freePort()),
    unix_socket_directories: directory,
    restore_command: `cp ${directory}/archive/%f %p`,
    recovery_target_time: target,
    recovery_target_action: 'promote',
  })
  const started = performance.now()
  const stop = await startServer(host.scope, source.bin, args, data, source.uid)
  const seconds = (performance.now() - started) / 1000
  await stop()
  remove()
  return seconds
}

function archiveOf({ home }: ClusterHost, { id }: Cluster): string {
  const archive = `${home}/repository/${id}/archive`
  return join(archive, readdirSync(archive)[0]!)
}
