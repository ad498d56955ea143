import type pg from 'pg'
import { type Access, connect, type Way } from '../client.ts'
import type { Attempt } from './attempt.ts'

export interface Outcome {
  /** `ok` or the SQLSTATE of the error. */
  end: string
  /** Everything that the tenant got to read. */
  seen: string
}

/** Values for the words in braces. */
export type Values = Record<string, string>

/** Runs attempts one after another, in a session that is opened again when one of them ends it. */
export class AttackSession {
  private client: pg.Client | undefined
  private readonly access: Access
  private readonly way: Way
  private readonly start: string

  constructor(access: Access, way: Way, start = 'select 1') {
    this.access = access
    this.way = way
    this.start = start
  }

  async run({ sql }: Pick<Attempt, 'sql'>, values: Values): Promise<Outcome> {
    const client = await this.open()
    const notices: string[] = []
    const listen = (notice: { message?: string | undefined }) => notices.push(notice.message ?? '')
    client.on('notice', listen)
    const outcome = await tryAll(
      client,
      sql.map((statement) => fill(statement, values)),
    )
    // At once, because the next attempt may be in another session.
    await client.query('rollback').catch(() => undefined)
    client.off('notice', listen)
    return { ...outcome, seen: [outcome.seen, ...notices].join('\n') }
  }

  async close(): Promise<void> {
    await this.client?.end().catch(() => undefined)
    this.client = undefined
  }

  /** Returns a session in its initial state. */
  private async open(): Promise<pg.Client> {
    try {
      await this.client?.query('discard all')
    } catch {
      await this.close()
    }
    this.client ??= await connect(this.access, this.way)
    await this.client.query(this.start)
    return this.client
  }
}

async function tryAll(client: pg.Client, statements: string[]): Promise<Outcome> {
  let seen = ''
  try {
    for (const statement of statements) {
      const result: pg.QueryResult | pg.QueryResult[] = await client.query(statement)
      seen += JSON.stringify([result].flat().map(({ rows }) => rows))
    }
    return { end: 'ok', seen }
  } catch (error) {
    const { code = '', message, detail, hint, where } = error as pg.DatabaseError
    return { end: code, seen: [seen, message, detail, hint, where].join('\n') }
  }
}

export function fill(text: string, values: Values): string {
  return text.replace(/\{(\w+)\}/g, (word, name: string) => values[name] ?? word)
}
