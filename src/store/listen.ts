import pg from 'pg'

/** The channel for routing changes. A payload is `<kind> <id>`. */
export const routeChannel = 'route'

export interface Listener {
  close(): Promise<void>
}

/**
 * Calls back with the payload of every notification. It reconnects automatically and then calls back without a payload,
 * because notifications in between are lost; listeners must reload on that call, or poll.
 */
export function listen(config: pg.ClientConfig, channel: string, onNotify: (payload?: string) => void): Listener {
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
    next.on('notification', ({ payload }) => onNotify(payload))
    await next.connect()
    await next.query(`listen ${channel}`)
    onNotify() // notifications before the connection was established were missed
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

// The keys of advisory locks; no other lock may use the same numbers.
const locks = { sampler: 0x73616d70, 'machine checks': 0x6d636b73 }

/**
 * Elects one process per task among all that use this state database. The lock is held by the connection, so it passes to
 * another process after a crash.
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
