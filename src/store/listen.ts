import pg from 'pg'

export interface Listener {
  close(): Promise<void>
}

/**
 * Calls back on every notification. A lost connection is made anew by itself; whoever listens must poll as well, because
 * nothing is heard in between.
 */
export function listen(config: pg.ClientConfig, channel: string, heard: () => void): Listener {
  let client: pg.Client | undefined
  let closed = false
  let retry: NodeJS.Timeout | undefined

  async function connect(): Promise<void> {
    const next = new pg.Client(config)
    client = next
    next.on('error', () => {})
    next.on('end', () => {
      if (!closed) retry = setTimeout(attempt, 500)
    })
    next.on('notification', heard)
    await next.connect()
    await next.query(`listen ${channel}`)
    heard() // what happened before the connection stood
  }

  function attempt(): void {
    connect().catch(() => client?.end().catch(() => {}))
  }

  attempt()
  return {
    async close() {
      closed = true
      clearTimeout(retry)
      await client?.end().catch(() => {})
    },
  }
}
