import { expect, test } from 'vitest'
import { isReservedUser } from './user.ts'

test('only names of the platform and of PostgreSQL are reserved', () => {
  for (const name of ['postgres', 'berth', 'berth_pooler', 'pg_monitor', 'schema_admin', 'public'])
    expect([name, isReservedUser(name)]).toEqual([name, true])
  for (const name of ['bertha', 'berthold', 'pgadmin', 'fly-user', 'app'])
    expect([name, isReservedUser(name)]).toEqual([name, false])
})
