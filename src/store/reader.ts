import pg from 'pg'

/** A short read by key that takes no locks. The name makes it a prepared statement. */
export type Read = pg.QueryConfig & { name: string }

export interface Reader {
  query<R extends pg.QueryResultRow>(statement: Read): Promise<pg.QueryResult<R>>
  close(): Promise<void>
}

/**
 * One pipelined connection for the reads of all callers. Client and server then wake up once for several statements,
 * and a wake-up costs more than a read by key. The next read replaces a lost connection.
 */
export function openReader(settings: pg.ClientConfig): Reader {
  let current: Promise<pg.Client> | undefined

  function connect(): Promise<pg.Client> {
    const client = new pg.Client({ ...settings, pipeline: true })
    const connecting = client.connect().then(() => client)
    const discard = () => {
      if (current === connecting) current = undefined
    }
    client.on('error', discard)
    client.on('end', discard)
    connecting.catch(discard)
    return connecting
  }

  return {
    async query<R extends pg.QueryResultRow>(statement: Read): Promise<pg.QueryResult<R>> {
      current ??= connect()
      return (await current).query<R>(statement)
    },
    async close(): Promise<void> {
      const client = await current?.catch(() => undefined)
      await client?.end()
    },
  }
}
