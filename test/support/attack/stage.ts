// A platform with a cluster, its users, and what must not change during an attack.
import { chmodSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect } from 'vitest'
import { Berth } from '../berth.ts'
import { type Access, accessOf, ask, connect, createCluster, destroy, processesOf, untilReady } from '../client.ts'
import { removeDirectory } from '../directory.ts'
import { installed } from './extension.ts'
import type { Values } from './session.ts'

export type Role = 'schema_admin' | 'writer' | 'reader'

export interface Stage {
  berth: Berth
  id: string
  access: Record<Role, Access>
  values: Values
  /** Calls the API of the cluster. */
  call(method: string, rest?: string, body?: object): ReturnType<Berth['call']>
  /** Expects that no right, role, file or process is there that was not there before. */
  expectNoEscape(): Promise<void>
  close(): Promise<void>
}

const canary = 'canary-content\n'

export async function openStage(major: string): Promise<Stage> {
  const berth = new Berth({ BERTH_DRILL_INTERVAL: 'off' })
  // Everyone may read and write here, so only the rights of the tenant keep it out.
  const outside = mkdtempSync(join(tmpdir(), 'berth-outside-'))
  chmodSync(outside, 0o777)
  writeFileSync(`${outside}/canary`, canary)
  chmodSync(`${outside}/canary`, 0o666)
  const listener = await openListener()

  async function close(): Promise<void> {
    await new Promise((resolve) => listener.server.close(resolve))
    await destroy(berth)
    await removeDirectory(outside)
  }

  try {
    await berth.up()
    const id = await createCluster(berth, { pg_major_version: major })
    await untilReady(berth, id)
    const call: Stage['call'] = (method, rest = '', body) => berth.call(method, `/v1/postgres/${id}${rest}`, body)
    const access = await prepare(berth, id, call)
    const values = {
      outside,
      home: berth.home,
      data: `${berth.home}/clusters/${id}/data`,
      socket: `${berth.home}/run/${id}`,
      sockets: await findSockets(access.schema_admin),
      port: String(access.schema_admin.direct.port),
      pooler: String(access.schema_admin.pooler.port),
      api: new URL(berth.addresses.api).port,
      listener: String(listener.port),
    }
    const before = await describeRights(access.schema_admin)
    return {
      berth,
      id,
      access,
      values,
      call,
      close,
      async expectNoEscape() {
        expect(await describeRights(access.schema_admin)).toEqual(before)
        expect(readdirSync(outside)).toEqual(['canary'])
        expect(readFileSync(`${outside}/canary`, 'utf8')).toBe(canary)
        expect(processesOf(outside)).toEqual([])
        expect(listener.takeConnections()).toBe(0)
      },
    }
  } catch (error) {
    await close()
    throw error
  }
}

async function prepare(berth: Berth, id: string, call: Stage['call']): Promise<Record<Role, Access>> {
  const users = { 'other-admin': 'schema_admin', 'a-writer': 'writer', 'a-reader': 'reader' }
  for (const [username, role] of Object.entries(users)) {
    expect((await call('POST', '/users', { username, role })).status).toBe(201)
  }
  for (const name of installed) {
    expect(await call('POST', '/databases/fly-db/extensions', { name }), name).toMatchObject({ status: 204 })
  }
  return {
    schema_admin: await accessOf(berth, id),
    writer: await accessOf(berth, id, 'a-writer'),
    reader: await accessOf(berth, id, 'a-reader'),
  }
}

/** The directory of the server's Unix socket, as an admin sees it. */
async function findSockets(admin: Access): Promise<string> {
  const [row] = await ask(admin, 'direct', `select current_setting('unix_socket_directories') as directories`)
  return String(row!.directories).split(',')[0]!.trim()
}

/** Accepts connections on the loopback address and counts them since the last look. */
async function openListener(): Promise<{ server: Server; port: number; takeConnections(): number }> {
  let connections = 0
  const server = createServer((socket) => {
    connections += 1
    socket.destroy()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const address = server.address()
  return {
    server,
    port: typeof address === 'object' && address ? address.port : 0,
    takeConnections() {
      const taken = connections
      connections = 0
      return taken
    },
  }
}

/** Everything in the catalogs that gives rights; what users own in their schemas is left out. */
const rights: Record<string, string> = {
  roles: `select rolname, rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls, rolcanlogin, rolconnlimit,
    rolvaliduntil from pg_roles`,
  memberships: `select roleid::regrole, member::regrole, grantor::regrole, admin_option, inherit_option, set_option
    from pg_auth_members`,
  settings: 'select setdatabase, setrole::regrole, setconfig from pg_db_role_setting',
  parameters: 'select parname, paracl from pg_parameter_acl',
  databases: `select datname, datdba::regrole, datistemplate, datallowconn, datconnlimit,
    has_database_privilege('public', oid, 'connect') as open from pg_database`,
  tablespaces: 'select spcname, spcowner::regrole, spcacl from pg_tablespace',
  languages: 'select lanname, lanowner::regrole, lanpltrusted, lanacl from pg_language',
  wrappers: 'select fdwname, fdwowner::regrole, fdwacl from pg_foreign_data_wrapper',
  extensions: 'select extname, extowner::regrole, extnamespace::regnamespace from pg_extension',
  triggers: 'select evtname, evtowner::regrole, evtenabled from pg_event_trigger',
  schemas: `select nspname, nspowner::regrole, nspacl from pg_namespace where nspname !~ '^pg_(toast_)?temp_'`,
  functions: `select oid::regprocedure, proowner::regrole, prosecdef, proconfig, proacl from pg_proc
    where prosecdef or proowner <> 10 and pronamespace in ('pg_catalog'::regnamespace, 'pg_berth'::regnamespace)`,
  systemFunctions: `select md5(string_agg(concat_ws(' ', oid, proowner, prosecdef, prosrc, probin, proacl), ' ' order by oid))
    from pg_proc where pronamespace in ('pg_catalog'::regnamespace, 'pg_berth'::regnamespace)`,
  publications: 'select pubname from pg_publication',
  slots: `select slot_name from pg_replication_slots where slot_name ~ 'evil'`,
}

async function describeRights(admin: Access): Promise<Record<string, unknown>> {
  const found: Record<string, unknown> = {}
  const client = await connect(admin, 'direct')
  try {
    for (const [name, query] of Object.entries(rights)) {
      found[name] = (await client.query(`select to_json(t)::text as row from (${query}) t order by 1`)).rows
    }
  } finally {
    await client.end()
  }
  return found
}
