import type { ChildProcess } from 'node:child_process'
import { chownSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import type { TestProject } from 'vitest/node'
import type { Home } from '../../../src/drivers/host/home.ts'
import { isRoot, run } from '../../../src/drivers/host/process.ts'
import { ensureToolchain } from '../../../src/drivers/postgres/toolchain/toolchain.ts'
import { openDatabase } from '../../../src/store/db.ts'
import { ensureEdgeRole } from '../../../src/store/edge-role.ts'
import { migrate } from '../../../src/store/migrate.ts'
import { edgeUser, templateDatabase } from '../db.ts'
import { guardDirectory, makeDirectory } from './guard.ts'
import { shareHome } from './home.ts'
import { share } from './shared.ts'

// Nothing is kept after the run, so nothing has to survive a crash.
const settings = {
  listen_addresses: '',
  max_connections: '200',
  fsync: 'off',
  synchronous_commit: 'off',
  full_page_writes: 'off',
  autovacuum: 'off',
  jit: 'off',
  timezone: 'UTC',
}

/** initdb refuses to run as root and as a user without a name. */
const nobody = 65_534

/** Provides one PostgreSQL server for all test files, with a migrated database that each of them copies. */
export async function setup(project: TestProject): Promise<() => Promise<void>> {
  const home = await shareHome()
  const server = await share('server', () => startServer(home.value))
  project.provide('server', server.value)
  return async () => {
    await server.release()
    await home.release()
  }
}

async function startServer(home: Home): Promise<{ value: pg.ClientConfig; close(): Promise<void> }> {
  const { bin } = await ensureToolchain('17', home)
  const directory = makeDirectory()
  const data = `${directory}/data`
  const uid = isRoot() ? nobody : undefined
  if (uid !== undefined) chownSync(directory, uid, uid)
  const locale = ['--locale=C.UTF-8', '--locale-provider=builtin', '--builtin-locale=C.UTF-8']
  await run(`${bin}/initdb`, ['-D', data, '-U', 'berth', '-A', 'trust', '-E', 'UTF8', '--no-sync', ...locale], { uid })
  const options = Object.entries({ ...settings, unix_socket_directories: directory })
  const user = uid === undefined ? [] : ['setpriv', `--reuid=${uid}`, `--regid=${uid}`, '--clear-groups']
  const command = [
    ...user,
    `${bin}/postgres`,
    '-D',
    data,
    ...options.flatMap(([name, value]) => ['-c', `${name}=${value}`]),
  ]
  const { guard, close } = guardDirectory(directory, command)
  const value = { host: directory, port: 5432, user: 'berth' }
  await untilAnswers(guard, value)
  await makeTemplate(value)
  return { value, close }
}

async function untilAnswers(child: ChildProcess, config: pg.ClientConfig): Promise<void> {
  for (;;) {
    if (child.exitCode !== null) throw new Error(`the PostgreSQL server of the tests exited with ${child.exitCode}`)
    const client = new pg.Client({ ...config, database: 'postgres' })
    try {
      await client.connect()
      return
    } catch {
      await delay(50)
    } finally {
      await client.end().catch(() => {})
    }
  }
}

async function makeTemplate(config: pg.ClientConfig): Promise<void> {
  const admin = openDatabase({ ...config, database: 'postgres' })
  await admin.query(`create database ${templateDatabase}`)
  await admin.close()
  const template = openDatabase({ ...config, database: templateDatabase })
  await migrate(template)
  await ensureEdgeRole(template, { name: edgeUser, verifier: null })
  await template.close()
}
