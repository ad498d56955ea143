// Scripts that the supervisor runs around the program of a machine. They do not depend on the machine's version, so a
// new version does not change the service.
import type { Home } from '../host/home.ts'
import { baseEnvironment } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import { shellQuote } from '../host/shell.ts'
import { memoryGroup } from './control-group.ts'
import { changeDirectory, type MachinePaths } from './paths.ts'

/** Precedes text in the log that comes from the platform and not from the program. */
export const platformMark = '\x1d'

/** Surrounds the name of the container at the start of each line of the log. */
export const nameMark = '\x1c'

export function renderOutputLog(paths: MachinePaths): string {
  return renderLogger(`${paths.log}/stdout`)
}

export function renderErrorLog(paths: MachinePaths): string {
  return renderLogger(`${paths.log}/stderr`, paths.stderr)
}

function renderLogger(...args: string[]): string {
  const command = [driverProgram('machine/log-output.sh'), ...args].map(shellQuote).join(' ')
  return `#!/bin/sh\nexec /bin/sh ${command}\n`
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
  const lines = Object.entries(values).map(([name, value]) => `${name}=${shellQuote(value)}`)
  return ['#!/bin/sh', ...lines, `. ${shellQuote(driverProgram('machine/finish.sh'))}`, ''].join('\n')
}
