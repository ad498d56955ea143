import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ask, connect, type Way, ways } from '../client.ts'
import { type Attempt, denied, describeAttempt, proofs } from './attempt.ts'
import { codeAttempts } from './code.ts'
import { logins } from './connection.ts'
import { extensionAttempts } from './extension.ts'
import { fileAttempts } from './file.ts'
import { networkAttempts } from './network.ts'
import { roleAttempts } from './role.ts'
import { serverAttempts } from './server.ts'
import { AttackSession } from './session.ts'
import { settingAttempts } from './setting.ts'
import { openStage, type Role, type Stage } from './stage.ts'

const groups: Record<string, Attempt[]> = {
  'files and programs': fileAttempts,
  settings: settingAttempts,
  'roles and databases': roleAttempts,
  'code and catalogs': codeAttempts,
  'the server': serverAttempts,
  extensions: extensionAttempts,
  'other programs and hosts': networkAttempts,
}

interface Attacker {
  role: Role
  ways: readonly Way[]
  /** The statement that each session begins with. */
  start?: string
}

const attackers: Record<string, Attacker> = {
  'an admin': { role: 'schema_admin', ways },
  'an admin without the group role': { role: 'schema_admin', ways: ['direct'], start: 'set role none' },
  'a writer': { role: 'writer', ways },
  'a reader': { role: 'reader', ways },
}

/** Defines the tests of one major version; `more` adds others that use the same cluster. */
export function attackCluster(major: string, more: (stage: () => Stage) => void): void {
  let stage: Stage

  beforeAll(async () => {
    stage = await openStage(major)
  }, 300_000)

  afterAll(() => stage?.close())

  test('makes at least 150 attempts with each role', () => {
    const attempts = Object.values(groups).flat()
    expect(new Set(attempts.map(({ sql }) => sql.join(';'))).size).toBe(attempts.length)
    expect(attempts.length).toBeGreaterThan(800)
    // Most are refused outright.
    expect(attempts.filter(({ ends }) => !ends.includes('ok')).length).toBeGreaterThan(700)
    expect(attempts.filter(({ ends }) => ends.includes(denied)).length).toBeGreaterThan(600)
  })

  describe.each(Object.entries(attackers))('%s', (_name, { role, start, ...attacker }) => {
    for (const [group, attempts] of Object.entries(groups)) {
      describe(`against ${group}`, () => {
        let sessions: AttackSession[]
        let janitor: AttackSession

        beforeAll(() => {
          sessions = attacker.ways.map((way) => new AttackSession(stage.access[role], way, start))
          janitor = new AttackSession(stage.access.schema_admin, 'direct', 'set role none')
        })

        afterAll(async () => {
          for (const session of [...sessions, janitor]) await session.close()
        })

        test.each(attempts.map((attempt) => [describeAttempt(attempt), attempt] as const))(
          '%s',
          async (_sql, attempt) => {
            const values = { ...stage.values, me: `"${stage.access[role].user}"` }
            const ends = (role === 'schema_admin' && attempt.admin) || attempt.ends
            for (const session of sessions) {
              const { end, seen } = await session.run(attempt, values)
              if (attempt.undo) await janitor.run({ sql: [attempt.undo] }, values)
              expect(ends.split(' '), seen).toContain(end)
              for (const proof of proofs) expect(seen).not.toMatch(proof)
            }
          },
        )

        test('changes nothing outside of the database and no right', () => stage.expectNoEscape())
      })
    }

    test.each(logins.map((login) => [login.name, login] as const))('cannot connect %s', async (_name, login) => {
      for (const way of ways) {
        const opened = await connect(stage.access[role], way, login.change).then(
          async (client) => {
            const { rows } = await client
              .query(`select session_user::text as who, current_setting('is_superuser') as super`)
              .finally(() => client.end())
            return rows[0]
          },
          (error: Error) => error.message,
        )
        // The pooler ignores the options of a client.
        const isIgnored = way === 'pooler' && login.change.options !== undefined
        if ((login.harmless || isIgnored) && typeof opened === 'object') {
          expect(opened).toEqual({ who: stage.access[role].user, super: 'off' })
        } else {
          expect(opened, way).toEqual(expect.any(String))
        }
      }
    })

    test('is not a superuser after all of this', async () => {
      for (const way of ways) {
        const [row] = await ask(stage.access[role], way, `select current_setting('is_superuser') as super`)
        expect(row).toEqual({ super: 'off' })
      }
      await stage.expectNoEscape()
    })
  })

  more(() => stage)
}
