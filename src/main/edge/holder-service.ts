import { mkdirSync } from 'node:fs'
import { readTextIfPresent, replaceFile } from '../../drivers/host/file.ts'
import type { Home } from '../../drivers/host/home.ts'
import { withoutNewPrivileges } from '../../drivers/host/privilege.ts'
import { run } from '../../drivers/host/process.ts'
import type { Supervisor } from '../../drivers/s6/driver.ts'

const service = 'edge-sockets'
/** s6 passes all descriptors in one message, and the kernel allows 253. */
export const maxHeldSockets = 250

/** Starts the service that keeps the listening sockets of the edge, and returns its socket. */
export async function ensureSocketHolder(home: Home, supervisor: Supervisor): Promise<string> {
  const directory = `${home.run}/edge`
  const socket = `${directory}/sockets`
  mkdirSync(directory, { recursive: true, mode: 0o700 })
  const rules = writeRules(`${directory}/rules`)
  await supervisor.ensureService(service, { command: withoutNewPrivileges(holderCommand(rules, socket)) })
  return socket
}

/** Whether the holder has a socket for the shared address of the edge at this port. */
export async function isHeld(socket: string, port: number): Promise<boolean> {
  const { stdout } = await run('s6-fdholder-list', ['-t', '2000', socket]).catch(() => ({ stdout: '' }))
  return stdout.split('\n').some((name) => name.startsWith('edge ') && name.endsWith(` ${port}`))
}

export function holderCommand(rules: string, socket: string): string[] {
  return ['s6-fdholder-daemon', '-v', '1', '-n', String(maxHeldSockets), '-i', rules, socket]
}

/** Lets only processes of this user reach the sockets. The directory is closed to others as well. */
export function writeRules(directory: string): string {
  const own = `${directory}/uid/${process.getuid!()}`
  const contents = {
    allow: '',
    'env/S6_FDHOLDER_LIST': '1',
    'env/S6_FDHOLDER_GETDUMP': '1',
    'env/S6_FDHOLDER_SETDUMP': '1',
    'env/S6_FDHOLDER_STORE_REGEX': '^',
  }
  mkdirSync(`${own}/env`, { recursive: true, mode: 0o700 })
  for (const [file, text] of Object.entries(contents)) {
    if (readTextIfPresent(`${own}/${file}`) !== text) replaceFile(`${own}/${file}`, text)
  }
  return directory
}

/**
 * Passes the held sockets to a command. It gets none while the holder does not answer, because an edge that refuses
 * connections at its restarts is better than none.
 */
export function withHeldSockets(socket: string, command: string[]): string[] {
  const take = 's6-fdholder-getdump -t 2000 "$0"'
  return ['/bin/sh', '-c', `${take} true && exec ${take} "$@"; exec "$@"`, socket, ...command]
}
