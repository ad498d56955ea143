import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'

export interface Decided {
  xid: bigint
  /** The end of its record. */
  lsn: bigint
  micros: bigint
  committed: boolean
}

/** Lists commits and aborts in WAL order, as pg_walinspect reads them. */
export async function readDecisions(superuser: pg.Client, fromLsn: string): Promise<Decided[]> {
  await superuser.query('create extension if not exists pg_walinspect')
  const { rows } = await superuser.query(
    `select xid::text, record_type, description, (end_lsn - '0/0'::pg_lsn)::text as lsn from pg_get_wal_records_info($1, pg_current_wal_flush_lsn())
     where resource_manager = 'Transaction' order by start_lsn`,
    [fromLsn],
  )
  const decided = rows.filter((row) => /^(COMMIT|ABORT)(_PREPARED)?$/.test(row.record_type))
  return decided.map(({ xid, record_type, description, lsn }) => {
    // The record of a prepared transaction names it in its description; its transaction field is zero.
    const [, prepared, time] = /^(?:(\d+): )?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)/.exec(description)!
    const committed = record_type.startsWith('COMMIT')
    return { xid: BigInt(prepared ?? xid), lsn: BigInt(lsn), micros: toMicros(time!), committed }
  })
}

function toMicros(time: string): bigint {
  const [whole, fraction = ''] = time.split('.')
  return BigInt(Date.parse(`${whole!.replace(' ', 'T')}Z`)) * 1000n + BigInt(fraction.padEnd(6, '0'))
}

/** What a restore to this time must contain: everything up to the last commit with this timestamp or an earlier one. */
export function truthAt(decisions: Decided[], micros: bigint): Set<bigint> {
  const last = decisions.findLastIndex((decision) => decision.committed && decision.micros <= micros)
  const before = decisions.slice(0, last + 1)
  return new Set(before.filter((decision) => decision.committed).map((decision) => decision.xid))
}

/** Runs writers like those of applications until it is stopped. Every row contains the id of its transaction. */
export class Workload {
  private stopped = false
  private readonly writers: Promise<void>[] = []
  readonly connection: pg.ClientConfig

  constructor(connection: pg.ClientConfig) {
    this.connection = connection
  }

  async prepare(): Promise<void> {
    await this.use(async (client) => {
      await client.query(
        'create table log (writer int, n int, xid xid8 not null default pg_current_xact_id(), primary key (writer, n))',
      )
    })
  }

  start(): void {
    const kinds = [this.plain, this.savepoints, this.twoPhase, this.long, this.schema]
    this.writers.push(...kinds.map((kind, writer) => this.use((client) => this.repeat(client, writer, kind))))
  }

  async stop(): Promise<void> {
    this.stopped = true
    await Promise.all(this.writers)
  }

  private async use(work: (client: pg.Client) => Promise<void>): Promise<void> {
    const client = new pg.Client(this.connection)
    await client.connect()
    try {
      await work(client)
    } finally {
      await client.end()
    }
  }

  private async repeat(
    client: pg.Client,
    writer: number,
    kind: (client: pg.Client, writer: number, n: number) => Promise<void>,
  ) {
    for (let n = 0; !this.stopped; n++) await kind.call(this, client, writer, n)
  }

  private async plain(client: pg.Client, writer: number, n: number): Promise<void> {
    await client.query('insert into log (writer, n) values ($1, $2)', [writer, n])
    if (n % 50 === 49) await sleep(150) // an idle gap
  }

  private async savepoints(client: pg.Client, writer: number, n: number): Promise<void> {
    await client.query('begin')
    await client.query('savepoint a')
    await client.query('insert into log (writer, n) values ($1, $2)', [writer, n * 2])
    await client.query('savepoint b')
    await client.query('insert into log (writer, n) values ($1, $2)', [writer, n * 2 + 1])
    if (n % 2 === 0) await client.query('rollback to savepoint b')
    await client.query(n % 7 === 6 ? 'rollback' : 'commit')
  }

  private async twoPhase(client: pg.Client, writer: number, n: number): Promise<void> {
    await client.query('begin')
    await client.query('insert into log (writer, n) values ($1, $2)', [writer, n])
    await client.query(`prepare transaction 'p${n}'`)
    await sleep(n % 3)
    await client.query(`${n % 5 === 4 ? 'rollback' : 'commit'} prepared 'p${n}'`)
  }

  private async long(client: pg.Client, writer: number, n: number): Promise<void> {
    await client.query('begin')
    for (let i = 0; i < 10 && !this.stopped; i++) {
      await client.query('insert into log (writer, n) values ($1, $2)', [writer, n * 10 + i])
      await sleep(70)
    }
    await client.query('commit')
  }

  private async schema(client: pg.Client, writer: number, n: number): Promise<void> {
    await client.query('begin')
    await client.query(`create table extra_${n} (id int primary key)`)
    await client.query('insert into log (writer, n) values ($1, $2)', [writer, n])
    if (n > 0) await client.query(`drop table extra_${n - 1}`)
    await client.query('commit')
    await sleep(40)
  }
}
