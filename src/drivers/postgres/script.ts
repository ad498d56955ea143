import { readFileSync } from 'node:fs'
import { basename } from 'node:path'
import { driverProgram } from '../host/program.ts'

/**
 * The command that runs a script of a driver. It carries the text instead of the path: the users that clusters run as may
 * have no access to the installation directory, and an upgrade must not change a script while a shell is reading it.
 */
export function scriptCommand(name: string, ...args: string[]): string[] {
  return ['/bin/sh', '-c', readFileSync(driverProgram(name), 'utf8'), basename(name, '.sh'), ...args]
}
