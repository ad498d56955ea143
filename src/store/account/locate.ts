// Finds the numeric ids that the caveats of a token name, for resources that the caller may see.
import type { Caller } from '../../model/account/token.ts'
import type { Db } from '../db.ts'

type Reader = Pick<Db, 'read'>
type Owner = Pick<Caller, 'orgId'>

export interface Located {
  org: number
}

export interface LocatedApp extends Located {
  app: number
  /** The name of the app. */
  name: string
}

const visible = '($2::text is null or org.id = $2)'

async function find<T extends Located>(db: Reader, name: string, from: string, key: string, { orgId }: Owner) {
  const [row] = await db.read<T & Record<string, unknown>>({
    name: `locate-${name}`,
    text: `select org.numeric_id as org${from} and ${visible}`,
    values: [key, orgId],
  })
  return row as T | undefined
}

export function locateOrg(db: Reader, caller: Owner, slug: string): Promise<Located | undefined> {
  return find(db, 'org', ' from org where org.slug = $1', slug, caller)
}

export async function locateOwnOrg(db: Reader, orgId: string): Promise<Located | undefined> {
  return find(db, 'own-org', ' from org where org.id = $1', orgId, { orgId })
}

/** In any state, because some operations are about clusters that were deleted. */
export function locateCluster(db: Reader, caller: Owner, id: string): Promise<Located | undefined> {
  return find(db, 'cluster', ' from cluster join org on org.id = org_id where cluster.id = $1', id, caller)
}

export function locateSandbox(db: Reader, caller: Owner, name: string): Promise<Located | undefined> {
  return find(
    db,
    'sandbox',
    ` from sandbox join org on org.id = org_id where sandbox.name = $1 and sandbox.state in ('cold', 'running')`,
    name,
    caller,
  )
}

const appColumns = `, app.numeric_id as app, app.name as name from app join org on org.id = app.org_id`
const active = `app.state = 'active'`

export function locateApp(db: Reader, caller: Owner, name: string): Promise<LocatedApp | undefined> {
  return find(db, 'app', `${appColumns} where app.name = $1 and ${active}`, name, caller)
}

export function locateAppOfRelease(db: Reader, caller: Owner, releaseId: string): Promise<LocatedApp | undefined> {
  const condition = `app.id = (select app_id from release where id = $1) and ${active}`
  return find(db, 'app-of-release', `${appColumns} where ${condition}`, releaseId, caller)
}

/** The app of the source of a copy: a volume or a snapshot, whose app may be deleted. */
export function locateSource(
  db: Reader,
  caller: Owner,
  id: string,
): Promise<(LocatedApp & { volume: string }) | undefined> {
  return find(
    db,
    'source',
    `, app.numeric_id as app, app.name as name, volume.id as volume from volume
       join app on app.id = volume.app_id join org on org.id = app.org_id
     where (volume.id = $1 or volume.id = (select volume_id from snapshot where snapshot.id = $1))`,
    id,
    caller,
  )
}
