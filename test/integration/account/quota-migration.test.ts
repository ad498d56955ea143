import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { migrate } from '../../../src/store/migrate.ts'
import { useDatabase } from '../../support/db.ts'

const database = useDatabase()
const sql = async (text: string) => (await database.db.query(text)).rows

test('a platform that existed before quotas starts with the usage it has', async () => {
  await sql('drop schema public cascade; create schema public')
  await sql(readFileSync('migrations/0001_schema.sql', 'utf8'))
  await sql(`
    insert into org (id, slug, name) values ('o1', 'acme', 'Acme'), ('o2', 'empty', 'Empty');
    insert into network (org_id, name) values ('o1', 'default');
    insert into app (id, org_id, name, network, enable_subdomains, state) values
      ('a1', 'o1', 'shop', 'default', false, 'active'), ('a2', 'o1', 'old', 'default', false, 'deleting');
    insert into machine (id, app_id, name, state, region, instance_id, config, slot, network_number, wanted)
      select id, app, id, state, 'local', 'i', '{"image": "nginx:1"}', slot, 1, false from (values
        ('m1', 'a1', 'started', 1), ('m2', 'a1', 'destroyed', null), ('m3', 'a2', 'started', 2)) m (id, app, state, slot);
    insert into volume (id, app_id, name, region, size_gb, state, snapshot_retention, auto_backup) values
      ('v1', 'a1', 'data', 'local', 7, 'created', 5, true), ('v2', 'a1', 'data', 'local', 9, 'destroyed', 5, true);
    insert into cluster (id, org_id, name, plan, pg_major, disk_size_gb, region, postgis_enabled, pool_mode, state, scratch)
      values ('c1', 'o1', 'db', 'basic', '17', 10, 'local', false, 'session', 'ready', false),
        ('c2', 'o1', 'gone', 'basic', '17', 10, 'local', false, 'session', 'deleted', false),
        ('c3', 'o1', 'drill', 'basic', '17', 10, 'local', false, 'session', 'ready', true);
    insert into token (id, hash, kind, org_id) values ('t1', '\\x01', 'org', 'o1'), ('root', '\\x02', 'root', null);
    insert into secret (app_id, name, value, digest) values ('a1', 'KEY', '', ''), ('a2', 'KEY', '', '')`)
  await sql(
    `create table migration (name text primary key, sha256 text not null, applied_at timestamptz default now())`,
  )
  const digest = createHash('sha256').update(readFileSync('migrations/0001_schema.sql')).digest('hex')
  await sql(`insert into migration (name, sha256) values ('0001_schema.sql', '${digest}')`)
  expect(await migrate(database.db)).toContain('0002_quota.sql')
  expect(await sql('select org_id, quota, used from org_usage order by org_id, quota')).toEqual(
    Object.entries({
      apps: 1,
      clusters: 1,
      disk_gb: 17,
      images: 1,
      machines: 1,
      networks: 1,
      secrets: 1,
      slots: 2,
      tokens: 1,
      volumes: 1,
    }).map(([quota, used]) => ({ org_id: 'o1', quota, used })),
  )
  expect(await sql('select * from counted_usage order by org_id, quota')).toEqual(
    await sql('select * from org_usage order by org_id, quota'),
  )
})
