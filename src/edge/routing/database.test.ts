import { expect, test } from 'vitest'
import { createDatabaseRoutes, DatabaseTable } from './database.ts'

const cluster = { id: 'abcdefghij012345', number: 65_538, directPort: 15_000, poolerPort: 15_001, networks: [1, 300] }

test('a cluster has a name and an address for each endpoint in each network', () => {
  const routes = createDatabaseRoutes(cluster, 2)
  expect(routes.map(({ name, networkNumber, address, port }) => [networkNumber, name, address, port])).toEqual([
    [1, 'abcdefghij012345.pg.internal', 'fdaa:200:1::1:2:4', 15_001],
    [1, 'direct.abcdefghij012345.pg.internal', 'fdaa:200:1::1:2:5', 15_000],
    [300, 'abcdefghij012345.pg.internal', 'fdaa:200:12c::1:2:4', 15_001],
    [300, 'direct.abcdefghij012345.pg.internal', 'fdaa:200:12c::1:2:5', 15_000],
  ])
})

test('a cluster is found by the address of a socket until it is removed', () => {
  const table = new DatabaseTable()
  table.fill(createDatabaseRoutes({ ...cluster, networks: [1] }, 0))
  expect(table.find('fdaa:0:1::1:2:5')).toMatchObject({ endpoint: 'direct', port: 15_000 })
  expect(table.listListens()).toEqual(['fdaa:0:1::1:2:4 5432', 'fdaa:0:1::1:2:5 5432'])
  table.fill([])
  expect(table.find('fdaa:0:1::1:2:5')).toBeUndefined()
})
