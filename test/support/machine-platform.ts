import type { CallOptions, Method, Reply, usePlatform } from './platform.ts'

type Platform = ReturnType<typeof usePlatform>

const working = `('starting', 'stopping', 'restarting', 'suspending', 'replacing', 'launch_failed', 'destroying')`

/** Calls the API for the machines of one app; the test runs the steps of the loop itself. */
export function machinesOf(platform: Platform, app: string) {
  const path = `/v1/apps/${app}/machines`
  const machines = {
    path,
    create: (extra: object = {}, config: object = {}, options: CallOptions = {}) =>
      platform.call('POST', path, { body: { config: { image: 'nginx', ...config }, ...extra }, ...options }),

    call: (method: Method, id: string, rest = '', options: CallOptions = {}): Promise<Reply> =>
      platform.call(method, `${path}/${id}${rest}`, options),

    async state(id: string): Promise<string> {
      const [row] = await platform.sql('select state from machine where id = $1', [id])
      return row?.state
    },

    /** Creates a machine and waits until it is started. */
    async started(extra: object = {}, config: object = {}): Promise<string> {
      const made = await machines.create(extra, config)
      if (made.status !== 200) throw new Error(`create a machine: ${JSON.stringify(made.body)}`)
      await machines.settle()
      return made.body.id
    },

    /** Runs steps until only the periodic checks of running machines are left. */
    async settle(turns = 200): Promise<void> {
      for (let nth = 0; nth < turns; nth++) {
        await platform.sql('update work set run_at = now(), leased_until = null')
        await platform.turn().catch(() => undefined)
        const [left] = await platform.sql(
          `select 1 from machine where state in ${working}
           union all select 1 from work where last_error is not null or token is not null
           union all select 1 from app where state = 'deleting'`,
        )
        if (!left) return
      }
      throw new Error(
        `still not settled: ${JSON.stringify(await platform.sql('select kind, note, last_error from work'))}`,
      )
    },

    /** Runs the step of each started machine once more. */
    async look(): Promise<void> {
      const rows = await platform.sql(
        `update work set run_at = now(), leased_until = null where kind = 'machine' returning 1`,
      )
      for (const _ of rows) await platform.turn()
      await machines.settle()
    },

    async events(id: string): Promise<string[]> {
      const { body } = await machines.call('GET', id, '/events?limit=50')
      return body.map(({ type, status, source }: Record<string, string>) => `${type} ${status} ${source}`).reverse()
    },
  }
  return machines
}
