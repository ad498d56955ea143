// Every pair of operations of a user and a database of a cluster at nearly the same moment: afterwards the server has the
// users, roles, passwords and databases that the API shows.
import { afterAll, beforeAll } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { type Access, accessOf, ask, attempt, destroy, readyCluster } from '../../support/client.ts'
import type { Answer, Operation } from '../../support/race/race.ts'
import { CrashingBerth, raceTest } from '../../support/race/suite.ts'

const platform = new CrashingBerth(new Berth())
let cluster: string
let admin: Access

beforeAll(async () => {
  await platform.up()
  const id = await readyCluster(platform.berth, { pg_major_version: '17' })
  cluster = `/v1/postgres/${id}`
  admin = await accessOf(platform.berth, id)
}, 300_000)

afterAll(() => destroy(platform.berth))

const send = (method: string, path: string, body?: object) => platform.send('api', method, `${cluster}/${path}`, body)
const inSql = (sql: string, database = 'postgres') => ask(admin, 'direct', sql, { database })

/** The passwords that the requests of a round have shown. */
const shown = new Set<string>()

async function rotate(): Promise<Answer> {
  const answer = await send('POST', 'users/app/rotate_password', {})
  if (answer.status === 200) shown.add(JSON.parse(answer.text).data.password)
  return answer
}

const operations: Operation[] = [
  { name: 'create the user', run: () => send('POST', 'users', { username: 'app', role: 'writer' }) },
  { name: 'delete the user', run: () => send('DELETE', 'users/app') },
  { name: 'make it a reader', run: () => send('PATCH', 'users/app', { role: 'reader' }) },
  { name: 'make it an admin', run: () => send('PATCH', 'users/app', { role: 'schema_admin' }) },
  { name: 'rotate its password', run: rotate },
  { name: 'create the database', run: () => send('POST', 'databases', { name: 'data' }) },
  { name: 'drop the database', run: () => send('DELETE', 'databases/data') },
  { name: 'enable an extension', run: () => send('POST', 'databases/data/extensions', { name: 'pg_trgm' }) },
  { name: 'disable an extension', run: () => send('DELETE', 'databases/data/extensions/pg_trgm?force=true') },
]

async function prepare(): Promise<void> {
  await send('DELETE', 'users/app')
  await send('POST', 'users', { username: 'app', role: 'writer' })
  await send('POST', 'databases', { name: 'data' })
  await send('POST', 'databases/data/extensions', { name: 'pg_trgm' })
  // Deleting or changing the user has to visit this database. Only tables of an admin can be given away.
  await inSql('create table if not exists public.held (id int); grant select on public.held to app', 'data')
  shown.clear()
}

interface User {
  username: string
  role: string
}

async function findDifference(): Promise<string | undefined> {
  const listed = JSON.parse((await send('GET', 'users')).text).data as User[] | undefined
  if (!listed) return 'the users cannot be listed'
  return (await findUserProblem(listed.find(({ username }) => username === 'app'))) ?? findDatabaseProblem()
}

async function findUserProblem(user: User | undefined): Promise<string | undefined> {
  const roles = await inSql(
    `select rolcanlogin as login, array(select granted.rolname::text from pg_auth_members join pg_roles granted on granted.oid = roleid
       where member = pg_roles.oid) as groups from pg_roles where rolname = 'app'`,
  )
  const credentials = await send('GET', 'users/app/credentials')
  if (!user) {
    if (roles.length > 0) return `the user is not listed, and the server has it: ${JSON.stringify(roles)}`
    return credentials.status === 404 ? undefined : `the user is not listed, and has credentials: ${credentials.status}`
  }
  const [role] = roles as { login: boolean; groups: string[] }[]
  if (!role?.login || String(role.groups) !== user.role)
    return `the user is listed as ${user.role}, and the server has ${JSON.stringify(roles)}`
  if (credentials.status !== 200) return `the user is listed, and its credentials answer ${credentials.status}`
  const { password } = JSON.parse(credentials.text).data
  const login = await attempt({ ...admin, user: 'app', password }, 'direct')
  return login === true ? undefined : `the password that is shown is not in effect: ${login}`
}

async function findDatabaseProblem(): Promise<string | undefined> {
  const listed = JSON.parse((await send('GET', 'databases')).text).data as { name: string }[]
  const there = await inSql(`select datallowconn as open from pg_database where datname = 'data'`)
  if (listed.some(({ name }) => name === 'data') !== there.length > 0)
    return `databases ${JSON.stringify(listed)} are listed, and the server has ${there.length} of that name`
  return there.length === 0 || there[0]!.open ? undefined : 'the database accepts no connections'
}

raceTest('the users and databases of a cluster are as the API describes them after any two operations', () => ({
  operations,
  prepare,
  findDifference,
  crash: () => platform.crash(),
}))
