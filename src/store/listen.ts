import pg from 'pg'

/** The channel for changes that the edge follows. A payload is `<kind> <id>`. */
export const routeChannel = 'route'

export interface Listener {
  close(): Promise<void>
}

/**
 * Calls back with the payload of every notification. A lost connection is made anew by itself; whoever listens must poll
 * as well, or act on the call without a payload that follows, because nothing is heard in between.
 */
export function listen(config: pg.ClientConfig, channel: string, heard: (payload?: string) => void): Listener {
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
    next.on('notification', ({ payload }) => heard(payload))
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

export interface HeldLock {
  held(): boolean
  close(): Promise<void>
}

// Any numbers that nothing else of ours locks on.
const locks = { sampler: 0x73616d70, 'machine checks': 0x6d636b73 }

/**
 * Of all processes on one state database one samples, and one checks machines. The lock goes with the connection, so a
 * crash passes it on.
 */
export function holdLock(config: pg.ClientConfig, what: keyof typeof locks, onHeld = () => {}): HeldLock {
  let isHeld = false
  let client: pg.Client | undefined

  async function attempt(): Promise<void> {
    if (!client) {
      client = new pg.Client(config)
      client.on('error', () => {})
      client.on('end', () => {
        isHeld = false
        client = undefined
      })
      await client.connect()
    }
    if (isHeld) return
    const { rows } = await client.query('select pg_try_advisory_lock($1) as held', [locks[what]])
    isHeld = rows[0].held
    if (isHeld) onHeld()
  }

  const timer = setInterval(() => attempt().catch(() => client?.end().catch(() => {})), 1_000)
  attempt().catch(() => client?.end().catch(() => {}))
  return {
    held: () => isHeld,
    async close() {
      clearInterval(timer)
      await client?.end().catch(() => {})
    },
  }
}
