import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestProject } from 'vitest/node'
import { type Home, openHome } from '../../src/drivers/host/home.ts'
import { ensureTemplate } from '../../src/drivers/postgres/template.ts'
import { ensureToolchain } from '../../src/drivers/postgres/toolchain/toolchain.ts'
import { ensureTools } from '../../src/drivers/postgres/toolchain/tools.ts'
import { s6Supervisor } from '../../src/drivers/s6/supervisor.ts'
import { ensureStateDatabase } from '../../src/drivers/state/database.ts'
import { postgresMajors } from '../../src/model/postgres/cluster.ts'
import { openDatabase } from '../../src/store/db.ts'
import { migrate } from '../../src/store/migrate.ts'
import { templateDatabase } from './db.ts'

/** Starts one state database server for all test files, with a migrated template to copy from. */
export async function setup(project: TestProject): Promise<() => Promise<void>> {
  const path = mkdtempSync(join(tmpdir(), 'berth-test-'))
  chmodSync(path, 0o711)
  const home = await openHome(path, { uidBase: 300_000, registry: join(path, 'registry') })
  const supervisor = s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
  await supervisor.ensureTree()
  const toolchain = await ensureToolchain('17', home)
  const server = await ensureStateDatabase({ home, supervisor, toolchain })
  await makeTemplate({ ...server })
  project.provide('server', { host: server.host, port: server.port, user: server.user })
  project.provide('toolchain', await makeToolchain(home))
  return async () => {
    await supervisor.stopTree()
    rmSync(path, { recursive: true, force: true })
  }
}

/** Creates templates and tools once for the homes of all tests, because the first cluster would wait for them. */
async function makeToolchain(home: Home): Promise<string> {
  for (const major of postgresMajors) {
    const toolchain = await ensureToolchain(major, home)
    await ensureTemplate(toolchain, home)
    await ensureTools(toolchain)
  }
  return home.toolchain
}

async function makeTemplate(server: { host: string; port: number; user: string }): Promise<void> {
  const admin = openDatabase({ ...server, database: 'postgres' })
  await admin.query(`create database ${templateDatabase}`)
  await admin.close()
  const template = openDatabase({ ...server, database: templateDatabase })
  await migrate(template)
  await template.close()
}
