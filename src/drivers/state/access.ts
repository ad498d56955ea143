// Who may log in to the state database. The files lie outside of the data directory and belong to the control plane, so
// that the server cannot change them. They are written at each start, which also covers data directories of older versions.
import { ensureDirectory, ensureFile } from '../host/atomic-file.ts'
import { findUserName } from '../host/facts.ts'
import type { Home } from '../host/home.ts'
import { isRoot } from '../host/process.ts'

/** The role of the control plane, which owns the database. */
export const controlRole = 'berth'
/** The role of the edge, which can read routes and little else. */
export const edgeRole = 'berth_edge'

const map = 'berth'

export interface AccessFiles {
  hbaFile: string
  identFile: string
  /** A running server has to read them again. */
  isChanged: boolean
}

export function ensureAccessFiles(home: Pick<Home, 'state' | 'uidStart'>): AccessFiles {
  const user = findUserName()
  if (user === undefined) throw new Error(`user ${process.getuid?.()} has no name, which PostgreSQL needs to know it`)
  const directory = `${home.state}/access`
  const files = { hbaFile: `${directory}/pg_hba.conf`, identFile: `${directory}/pg_ident.conf` }
  ensureDirectory(directory, isRoot() ? { mode: 0o750, uid: 0, gid: home.uidStart } : { mode: 0o700 })
  const written = [
    ensureFile(files.hbaFile, hbaText(isRoot()), { mode: 0o644 }),
    ensureFile(files.identFile, identText(user, isRoot()), { mode: 0o644 }),
  ]
  return { ...files, isChanged: written.includes(true) }
}

/**
 * The kernel tells the server which user is at the other end of the socket. The edge has a uid of its own without a name,
 * which `peer` requires, so it logs in with a password. Without root, both processes have the same user. Every login that
 * no line allows is refused.
 */
export function hbaText(hasOwnEdgeUser: boolean): string {
  return [
    `local all ${controlRole} peer map=${map}`,
    `local ${controlRole} ${edgeRole} ${hasOwnEdgeUser ? 'scram-sha-256' : `peer map=${map}`}`,
    '',
  ].join('\n')
}

export function identText(user: string, hasOwnEdgeUser: boolean): string {
  // A name that begins with a slash would be a regular expression, also in quotes.
  if (!/^[^/\n\r\0][^\n\r\0]*$/.test(user)) throw new Error(`the user name ${JSON.stringify(user)} cannot be used`)
  const name = `"${user.replaceAll('"', '""')}"`
  const roles = hasOwnEdgeUser ? [controlRole] : [controlRole, edgeRole]
  return roles.map((role) => `${map} ${name} ${role}\n`).join('')
}
