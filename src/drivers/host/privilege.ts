import { findCommand } from './process.ts'

/** Keeps a command and its children from gaining privileges by setuid programs. Without setpriv it runs as it is. */
export function withoutNewPrivileges(command: string[]): string[] {
  const setpriv = findCommand('setpriv')
  return setpriv === undefined ? command : [setpriv, '--no-new-privs', '--', ...command]
}
