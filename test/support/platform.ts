import { inspect } from 'node:util'
import type { FastifyInstance } from 'fastify'
import pino from 'pino'
import { afterAll, beforeAll, beforeEach } from 'vitest'
import { prepareFirstUse } from '../../src/actions/first-use.ts'
import { createMetrics } from '../../src/api/http/metrics.ts'
import type { ServerOptions } from '../../src/api/http/options.ts'
import { buildServer } from '../../src/api/http/server.ts'
import { platformRoutes, sandboxRoutes, sandboxSockets } from '../../src/api/routes.ts'
import type { BoxDriver } from '../../src/drivers/box/driver.ts'
import { createOpenConnections } from '../../src/live/connection.ts'
import { createAdoptionRun } from '../../src/live/postgres/adopt-run.ts'
import { createExecSessions, type ExecSessions } from '../../src/live/sandbox/exec-sessions.ts'
import { OpenSessions } from '../../src/model/account/open-sessions.ts'
import type { PlatformSettings } from '../../src/model/settings.ts'
import { runNextStep } from '../../src/reconcile/loop.ts'
import { listTokenExpiries, tokenFeed } from '../../src/store/account/token.ts'
import { machineFeed } from '../../src/store/app/machine-feed.ts'
import type { Db } from '../../src/store/db.ts'
import { sandboxFeed } from '../../src/store/sandbox/feed.ts'
import { useDatabase } from './db.ts'
import { documentedResponses } from './documented.ts'
import { FakeWorld } from './fake/world.ts'

export interface Reply {
  status: number
  /** Whatever shape a test expects. */
  body: ReturnType<typeof JSON.parse>
  headers: Record<string, unknown>
}

export interface CallOptions {
  body?: unknown
  /** Sent as it is instead of `body`. */
  raw?: string | Buffer
  token?: string | null
  headers?: Record<string, string>
}

export type Method = 'GET' | 'HEAD' | 'POST' | 'PUT' | 'PATCH' | 'DELETE' | 'OPTIONS'

export interface PlatformChanges {
  settings?: Partial<PlatformSettings>
  /** Overrides of the fake box driver. */
  boxes?: Partial<BoxDriver>
  sessions?: ExecSessions
}

const checkPlatform = documentedResponses('platform', platformRoutes)
const checkSandbox = documentedResponses('sandbox', sandboxRoutes)

/** Runs the platform in this process with real routes and a real database, emptied before each test. Tests run the loop. */
export function usePlatform(changes: PlatformChanges & Partial<ServerOptions> = {}) {
  const database = useDatabase()
  const feed = sandboxFeed(() => database.config)
  const machineChanges = machineFeed(() => database.config)
  const sessions = changes.sessions ?? createExecSessions()
  const openSessions = new OpenSessions({ listValid: (hashes) => listTokenExpiries(database.db, hashes) })
  const tokenChanges = tokenFeed(() => database.config)
  const rootToken = 'berth_test_root'
  let server: FastifyInstance
  let sandboxServer: FastifyInstance

  const platform = {
    rootToken,
    database,
    /** The database of the loop, if a test replaces it to make statements fail. */
    loopDb: undefined as Db | undefined,

    get server() {
      return server
    },

    get sandboxServer() {
      return sandboxServer
    },

    call: (method: Method, url: string, options: CallOptions = {}) => call(server, checkPlatform, method, url, options),
    callSandbox: (method: Method, url: string, options: CallOptions = {}) =>
      call(sandboxServer, checkSandbox, method, url, options),

    /** All drivers in memory, reset before each test. */
    fake: new FakeWorld(),

    turn: () => runNextStep(platform.fake.world(platform.loopDb ?? database.db)),

    /** Runs all work at once, without waiting until it is due. */
    async work(turns = 50) {
      for (let i = 0; i < turns; i++) {
        await database.db.query('update work set run_at = now(), leased_until = null')
        if (!(await platform.turn())) return
      }
      throw new Error(`still work to do after ${turns} turns`)
    },

    /**
     * Runs steps until every row is in this state. Work on clusters and machines never ends, so `work` cannot be used. Some
     * steps wait for a time, such as that in the label of a backup, so the limit is one of time.
     */
    async workUntil(table: 'backup' | 'cluster' | 'machine' | 'volume', state: string) {
      for (const deadline = Date.now() + 45_000; Date.now() < deadline; ) {
        if ((await platform.sql(`select 1 from ${table} where state <> $1`, [state])).length === 0) return
        await database.db.query(`update work set run_at = now() - random() * interval '1 s', leased_until = null`)
        await platform.turn()
      }
      throw new Error(`not ${state} in time: ${inspect(await platform.sql(`select * from ${table}`))}`)
    },

    /** Empties the database and sets it up as at the first start. */
    async clear() {
      await database.db.query(await emptyEverything())
      await prepareFirstUse(database.db, rootToken)
    },

    sql: (text: string, values: unknown[] = []) => database.db.query(text, values).then((result) => result.rows),

    async createOrg(slug: string) {
      const made = await platform.call('POST', '/v1/orgs', { body: { slug } })
      if (made.status !== 201) throw new Error(`create organization: ${JSON.stringify(made.body)}`)
    },

    /** For tests that create more than an organization may have. */
    async setQuotas(limits: Record<string, number | string>, orgSlug = 'personal') {
      const changed = await platform.call('PATCH', `/v1/orgs/${orgSlug}/quotas`, { body: limits })
      if (changed.status !== 200) throw new Error(`set quotas: ${JSON.stringify(changed.body)}`)
    },

    async createToken(kind: string, orgSlug: string, extra: object = {}): Promise<string> {
      const made = await platform.call('POST', '/v1/tokens', { body: { kind, org_slug: orgSlug, ...extra } })
      if (made.status !== 201) throw new Error(`create token: ${JSON.stringify(made.body)}`)
      return made.body.token
    },

    createApp: (name: string, extra: object = {}) =>
      platform.call('POST', '/v1/apps', { body: { app_name: name, org_slug: 'personal', ...extra } }),
  }

  async function call(
    target: FastifyInstance,
    check: ReturnType<typeof documentedResponses>,
    method: Method,
    url: string,
    options: CallOptions,
  ): Promise<Reply> {
    const token = options.token === undefined ? rootToken : options.token
    const payload = options.raw ?? (options.body === undefined ? undefined : JSON.stringify(options.body))
    const reply = await target.inject({
      method,
      url,
      headers: { ...(token === null ? {} : { authorization: `Bearer ${token}` }), ...options.headers },
      ...(payload === undefined ? {} : { payload }),
    })
    const contentType = String(reply.headers['content-type'] ?? '')
    check(method, url, { status: reply.statusCode, contentType, body: reply.body })
    const isJson = contentType.startsWith('application/json')
    return { status: reply.statusCode, body: isJson && reply.body ? reply.json() : reply.body, headers: reply.headers }
  }

  beforeAll(() => {
    const settings = {
      regions: null,
      defaultRegion: 'local',
      pitrDays: 7,
      installedExtensions: { '16': new Set(['citext', 'hypopg']), '17': new Set(['citext']) },
      pgHost: 'localhost',
      ipPools: ['127.100.0.0/24', 'fd00:1::/64'],
      homeNumber: 0,
      memoryMb: 16_384,
      issuer: () => 'https://berth.example',
      appUrl: (name: string) => `http://${name}.berth.localhost:4282/`,
      sandboxUrl: (name: string) => `http://${name}.sandbox.localhost:4282/`,
      ...changes.settings,
    }
    tokenChanges.subscribe(() => openSessions.check())
    const world = platform.fake.world(database.db)
    const shared = {
      context: {
        ...world,
        boxes: { ...world.boxes, ...changes.boxes },
        sandboxFeed: feed,
        machineFeed: machineChanges,
        sessions,
        connections: createOpenConnections(),
        adoption: createAdoptionRun(),
        settings,
      },
      openSessions,
      log: pino({ level: 'silent' }),
      metrics: createMetrics('test'),
      rateLimit: false,
      ...changes,
    }
    server = buildServer({ area: 'platform', routes: platformRoutes, ...shared })
    sandboxServer = buildServer({ area: 'sandbox', routes: sandboxRoutes, sockets: sandboxSockets, ...shared })
  })

  let emptying: string | undefined

  /** Deletes rows, because truncating creates new files for every table. Triggers and foreign keys are disabled. */
  async function emptyEverything(): Promise<string> {
    if (emptying) return emptying
    const rows = await platform.sql(
      `select tablename from pg_tables where schemaname = 'public' and tablename <> 'migration'`,
    )
    const deletions = rows.map(({ tablename }) => `delete from ${tablename};`).join(' ')
    emptying = `begin; set local session_replication_role = replica; ${deletions} commit`
    return emptying
  }

  beforeEach(async () => {
    await platform.clear()
    platform.loopDb = undefined
    platform.fake.reset()
  })

  afterAll(async () => {
    await sessions.close()
    await server?.close()
    await sandboxServer?.close()
    await feed.close()
    await machineChanges.close()
    openSessions.stop()
    await tokenChanges.close()
  })

  return platform
}
