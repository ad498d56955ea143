import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { chmodSync, chownSync, globSync, mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { inject } from 'vitest'
import { end } from '../berth.ts'
import { removeDirectory } from '../directory.ts'
import { freePorts } from '../port.ts'
import { until } from '../until.ts'

const nobody = 65_534

/** A PostgreSQL server that does not belong to a platform, on loopback. */
export interface SourceServer {
  port: number
  url(database: string, user?: string): string
  query(database: string, text: string, values?: unknown[]): Promise<Record<string, unknown>[]>
  /** Ends it as a crash would, and starts it again. */
  stop(): Promise<void>
  start(): Promise<void>
  remove(): Promise<void>
}

export const sourcePassword = 'p:a\\s s@w%rd'

export async function startSource(major: '16' | '17', settings: Record<string, string> = {}): Promise<SourceServer> {
  const directory = mkdtempSync(join(tmpdir(), 'berth-source-'))
  const bin = globSync(`${inject('preparedHome')}/toolchain/postgres-${major}.*/bin`)[0]!
  const [port] = await freePorts(1)
  const user = process.getuid!() === 0 ? { uid: nobody, gid: nobody } : {}
  const data = `${directory}/data`
  chmodSync(directory, 0o755)
  if ('uid' in user) chownSync(directory, nobody, nobody)
  const passwords = `${directory}/password`
  writeFileSync(passwords, sourcePassword, { mode: 0o644 })
  const options = ['--username=owner', '--auth=scram-sha-256', '--pwfile', passwords, '--encoding=UTF8', '--no-sync']
  execFileSync(`${bin}/initdb`, ['-D', data, '--locale=C', ...options], { ...user, stdio: 'ignore', cwd: '/' })
  const all = {
    port,
    listen_addresses: '127.0.0.1',
    unix_socket_directories: '',
    wal_level: 'logical',
    fsync: 'off',
    shared_buffers: '16MB',
    ...settings,
  }
  const args = ['-D', data, ...Object.entries(all).flatMap(([name, value]) => ['-c', `${name}=${value}`])]
  let server: ChildProcess | undefined
  const login = { host: '127.0.0.1', port: port!, user: 'owner', password: sourcePassword }

  async function query(database: string, text: string, values?: unknown[]) {
    const client = new pg.Client({ ...login, database })
    client.on('error', () => undefined)
    await client.connect()
    try {
      const result = await client.query(text, values)
      return (Array.isArray(result) ? result.at(-1) : result).rows
    } finally {
      await client.end()
    }
  }

  const source: SourceServer = {
    port: port!,
    url: (database, name = 'owner') =>
      `postgresql://${name}:${encodeURIComponent(sourcePassword)}@127.0.0.1:${port}/${encodeURIComponent(database)}`,
    query,
    async start() {
      server = spawn(`${bin}/postgres`, args, { ...user, stdio: 'ignore', cwd: '/' })
      await until(
        () =>
          query('postgres', 'select 1').then(
            () => true,
            () => false,
          ),
        60,
      )
    },
    async stop() {
      if (server) await end(server, 'SIGQUIT')
    },
    async remove() {
      await source.stop()
      await removeDirectory(directory)
    },
  }
  await source.start()
  return source
}
