// What the supervisor runs around the program of a machine. Nothing in it changes with the machine's version, so that a
// newer one means no other service.
import { dirname } from 'node:path'
import type { Home } from '../host/home.ts'
import { baseEnvironment } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import { quote } from '../host/shell.ts'
import { changeDirectory, type MachinePaths } from './paths.ts'

/** First on a line of a log: what follows is said by us, not by the program. */
export const platformMark = '\x1d'

export function renderOutputLog(paths: MachinePaths): string {
  return renderLogger(`${paths.log}/stdout`)
}

/** Its pipe is open for writing as well, so that it never ends and nobody who writes to it is ever cut off. */
export function renderErrorLog(paths: MachinePaths): string {
  const pipe = quote(paths.stderr)
  return renderLogger(`${paths.log}/stderr`, `[ -p ${pipe} ] || mkfifo -m 600 ${pipe}\nexec 0<>${pipe}\n`)
}

// Up to 4 files of 8 MiB. With -b the logger does not read faster than it can write, which slows down the machine and
// nothing else.
function renderLogger(directory: string, before = ''): string {
  return `#!/bin/sh\n${before}export TZ=UTC0\nexec s6-log -b -- n3 s8388608 T ${quote(directory)}\n`
}

export function renderFinish(home: Home, paths: MachinePaths, procs: string[]): string {
  const values = {
    PATH: baseEnvironment.PATH,
    directory: paths.directory,
    service: paths.service,
    memory: memoryGroup(procs) ?? '',
    changes: changeDirectory(home),
    trash: `${home.path}/trash`,
  }
  const lines = Object.entries(values).map(([name, value]) => `${name}=${quote(value)}`)
  return ['#!/bin/sh', ...lines, `. ${quote(driverProgram('machine/finish.sh'))}`, ''].join('\n')
}

/** Where the kernel counts whom it killed for memory. */
export function memoryGroup(procs: string[]): string | undefined {
  const groups = procs.map(dirname)
  return groups.find((group) => /\/memory\//.test(group)) ?? groups[0]
}
