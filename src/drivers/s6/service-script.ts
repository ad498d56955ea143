// The files of a service directory. They are generated and self-contained, because s6 runs them after a reboot without
// the control plane. Their text decides whether a service has changed: another text restarts every service on an
// upgrade.
import { dirname } from 'node:path'
import { baseEnvironment, findCommand } from '../host/process.ts'
import { shellQuote } from '../host/shell.ts'
import type { ServiceSpec } from './driver.ts'
import { type SupervisorPaths, serviceMark } from './service-directory.ts'

export const defaultStopTimeoutSeconds = 10

/** The text of each file by its path in the service directory. */
type Definition = Record<'run' | 'log/run' | 'down-signal' | 'timeout-kill', string> &
  Partial<Record<'finish' | 'timeout-finish', string>>

export function renderDefinition(paths: SupervisorPaths, name: string, spec: ServiceSpec): Definition {
  return {
    run: renderRun(spec, serviceMark(paths, name)),
    'log/run': spec.logger ?? `#!/bin/sh\nexec s6-log n10 s1000000 T ${shellQuote(`${paths.logDirectory}/${name}`)}\n`,
    'down-signal': `${spec.stopSignal ?? 'SIGTERM'}\n`,
    'timeout-kill': `${(spec.stopTimeoutSeconds ?? defaultStopTimeoutSeconds) * 1000}\n`,
    // No timeout: s6 would restart the service after killing its finish script.
    ...(spec.once && { finish: renderFinish(), 'timeout-finish': '0\n' }),
    ...(spec.finish !== undefined && { finish: spec.finish, 'timeout-finish': '0\n' }),
  }
}

// Exit code 125 makes s6 keep the service down, and the `down` file makes the next tree do so. If s6 was told to stop
// the service, the command has not ended on its own, and the next tree starts it again.
function renderFinish(): string {
  return [
    '#!/bin/sh',
    `PATH=${shellQuote(baseEnvironment.PATH)}`,
    '[ "$(s6-svstat -o wantedup .)" = true ] || exit 0',
    'echo "$1 $2" > down.next && mv down.next down',
    'if [ "$1" = 256 ]; then echo "ended by signal $2"; else echo "ended with exit code $1"; fi',
    'exit 125',
    '',
  ].join('\n')
}

function renderRun(spec: ServiceSpec, mark: string): string {
  const variables = Object.entries({ ...baseEnvironment, ...spec.env })
  return [
    // The script starts with an empty environment and exports variables itself: as arguments of env(1) they would be
    // visible to every user for a moment.
    '#!/usr/bin/env -iS /bin/sh -e',
    'exec 2>&1',
    'umask 022',
    ...killLeftovers(mark),
    ...(spec.cgroup ?? []).map(joinCgroup),
    `cd ${shellQuote(spec.cwd ?? '/')}`,
    'unset PWD OLDPWD',
    ...variables.map(([key, value]) => `export ${variableName(key)}=${shellQuote(value)}`),
    `export ${shellQuote(mark)}`,
    ...(spec.beforeStart ?? []).map((command) => renderCommand(command, spec)),
    `exec ${renderCommand(spec.command, spec)}`,
    '',
  ].join('\n')
}

// Children that outlive a crashed main process hold its ports, and a killed s6-supervise leaves the main process
// running. The script does not kill itself: /proc shows the environment that a process was started with, without later
// exports. Reading every process takes longer than most services take to start, so the first start skips it.
function killLeftovers(mark: string): string[] {
  return [
    `PATH=${shellQuote(baseEnvironment.PATH)}`,
    'if [ -e lived ]; then',
    `  for pid in $(grep -lzxF -e ${shellQuote(mark)} /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3); do`,
    '    kill -9 "$pid" 2>/dev/null || :',
    '  done',
    'else : > lived; fi',
  ]
}

// Runs before the switch to the service's user. A service without limits is better than none, so failures are only
// logged. In version 1, `tasks` moves a single thread, which spares the kernel from synchronizing all processors.
function joinCgroup(procs: string): string {
  const directory = dirname(procs)
  const [group, threads] = [shellQuote(directory), shellQuote(`${directory}/tasks`)]
  const join = `if [ -e ${threads} ]; then echo 0 > ${threads}; else echo 0 > ${shellQuote(procs)}; fi`
  return `{ { [ -d ${group} ] || mkdir -p ${group}; } && ${join}; } 2>/dev/null || echo 'runs without the limits of' ${shellQuote(procs)}`
}

function renderCommand(command: string[], spec: ServiceSpec): string {
  if (!command[0] || command[0].startsWith('-')) throw new Error(`not a command: ${JSON.stringify(command)}`)
  const words = command.map(shellQuote).join(' ')
  if (spec.uid === undefined) return words
  return `${applyUidGid()} -u ${spec.uid} -g ${spec.gid ?? spec.uid} -G '' ${words}`
}

// The full path is needed because the service may set its own PATH.
function applyUidGid(): string {
  const path = findCommand('s6-applyuidgid')
  if (path === undefined) throw new Error('s6 is not installed: apt-get install s6')
  return path
}

function variableName(name: string): string {
  if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) throw new Error(`not a variable name: ${JSON.stringify(name)}`)
  return name
}
