// What a tenant can do who runs programs as the server of a cluster, which only a fault in PostgreSQL would allow.
import { execFileSync } from 'node:child_process'
import { statSync, writeFileSync } from 'node:fs'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { clusterAttempts, type Surroundings } from '../support/attack/cluster.ts'
import { Berth } from '../support/berth.ts'
import { accessOf, destroy, readyCluster } from '../support/client.ts'

const berth = new Berth()
const clusters: Record<string, string> = {}

beforeAll(async () => {
  await berth.up()
  const [first, second, other] = await Promise.all(
    ['16', '17', '17'].map((major) => readyCluster(berth, { pg_major_version: major })),
  )
  Object.assign(clusters, { 16: first, 17: second, other })
})

afterAll(() => destroy(berth))

describe.each(['16', '17'])('the server of PostgreSQL %s', (major) => {
  test('cannot leave its box', async () => {
    const id = clusters[major]!
    const { direct, pooler } = await accessOf(berth, clusters.other!)
    const canary = `${berth.home}/canary`
    writeFileSync(canary, 'canary')
    const around: Surroundings = {
      home: berth.home,
      id,
      otherId: clusters.other!,
      ports: {
        'the API': Number(new URL(berth.addresses.api).port),
        'another server': direct.port,
        'another pooler': pooler.port,
      },
      canary,
      hostPid: process.pid,
    }
    const run = await asServer(id)
    try {
      expect(await run('echo ESCAPED')).toContain('ESCAPED')
      const attempts = clusterAttempts(around)
      expect(Object.keys(attempts).length).toBeGreaterThanOrEqual(80)
      const succeeded: string[] = []
      for (const [name, command] of Object.entries(attempts)) {
        if ((await run(command)).includes('ESCAPED')) succeeded.push(name)
      }
      expect(succeeded).toEqual([])
    } finally {
      await run.end()
    }
  })
})

test.runIf(process.getuid!() === 0)(
  'the user of a server cannot reach the network with the connection of a client',
  () => {
    const { uid } = statSync(`${berth.home}/clusters/${clusters['17']}/data`)
    const program = new URL('../support/attack/reconnect.pl', import.meta.url).pathname
    const output = execFileSync('perl', [program, String(uid)], { encoding: 'utf8', timeout: 20_000 })
    expect(output.split('\n').sort()).toEqual(['', 'connected', 'refused', 'refused'])
  },
)

/** Runs shell commands in the server. Only the platform can connect as superuser. */
async function asServer(id: string) {
  const { direct } = await accessOf(berth, id)
  const client = new pg.Client({
    host: `${berth.home}/run/${id}`,
    port: direct.port,
    user: 'postgres',
    database: 'postgres',
  })
  await client.connect()
  await client.query('CREATE TEMP TABLE output (line text)')
  const run = async (command: string): Promise<string> => {
    const program = `timeout 10 sh -c ${quote(`{ ${command}; } 2>&1; :`)}`
    await client.query('TRUNCATE output')
    await client.query(
      `COPY output FROM PROGRAM ${client.escapeLiteral(program)} (FORMAT csv, DELIMITER E'\\x01', QUOTE E'\\x02')`,
    )
    const { rows } = await client.query('SELECT line FROM output')
    return rows.map(({ line }) => line).join('\n')
  }
  return Object.assign(run, { end: () => client.end() })
}

function quote(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`
}
