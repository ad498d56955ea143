import { once } from 'node:events'
import type pg from 'pg'
import { startProgram } from '../../support/temporary-home.ts'

export const nobody = 65_534

const client = new URL('../../../node_modules/pg/lib/index.js', import.meta.url).pathname

/** Logs in to a server as a user of this host. Returns the name of the role, or the message of the error. */
export async function logIn(uid: number, config: pg.ClientConfig, groups: number[] = []): Promise<string> {
  const source = `
    import pg from '${client}'
    process.setgroups?.(${JSON.stringify([uid, ...groups])})
    process.setgid(${uid})
    process.setuid(${uid})
    const client = new pg.Client(${JSON.stringify(config)})
    client.on('error', () => {})
    const answer = await client.connect()
      .then(() => client.query('select current_user as role'))
      .then(({ rows }) => rows[0].role, (error) => error.message)
    await client.end().catch(() => {})
    console.log(answer)
  `
  const program = startProgram(source)
  let text = ''
  program.stdout.on('data', (chunk) => {
    text += chunk
  })
  await once(program, 'close')
  return text.trimEnd()
}
