import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Database, Tx } from './db.ts'

const directory = new URL('../../migrations/', import.meta.url).pathname

// The key of an advisory lock; no other lock may use the same number.
const migrationLock = 0x62657274

/**
 * Applies all pending migrations in one transaction under a lock, so that concurrent starts apply them once and a crash
 * leaves the old schema intact.
 */
export async function migrate(db: Database): Promise<string[]> {
  const files = (await readdir(directory)).filter((name) => /^\d{4}_.+\.sql$/.test(name)).sort()
  return db.transaction(async (tx) => {
    await tx.query('select pg_advisory_xact_lock($1)', [migrationLock])
    await tx.query(
      `create table if not exists migration (
         name text primary key, sha256 text not null, applied_at timestamptz not null default now())`,
    )
    const { rows } = await tx.query<{ name: string; sha256: string }>('select name, sha256 from migration')
    const applied = new Map(rows.map((row) => [row.name, row.sha256]))
    rejectUnknownSchema(applied, files)
    const pending: string[] = []
    for (const name of files) if (await applyOnce(tx, name, applied.get(name))) pending.push(name)
    return pending
  })
}

function rejectUnknownSchema(applied: Map<string, string>, files: string[]): void {
  const unknown = [...applied.keys()].filter((name) => !files.includes(name))
  if (unknown.length > 0) {
    throw new Error(
      `the state database has migrations that this version does not know (${unknown.join(', ')}): it was created by a ` +
        'newer version of Berth, or by a checkout from before the first release',
    )
  }
}

async function applyOnce(tx: Tx, name: string, sha256: string | undefined): Promise<boolean> {
  const sql = await readFile(join(directory, name), 'utf8')
  const digest = createHash('sha256').update(sql).digest('hex')
  if (sha256 === digest) return false
  if (sha256 !== undefined) throw new Error(`migration ${name} was changed after it was applied`)
  await tx.query(sql)
  await tx.query('insert into migration (name, sha256) values ($1, $2)', [name, digest])
  return true
}
