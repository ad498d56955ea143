// Renders the scripts with which s6 runs the services of a box. Values from users are always quoted.
import type { ServiceDefinition } from '../../../model/sandbox/service.ts'
import { shellQuote } from '../../host/shell.ts'
import type { ScriptPaths } from '../paths.ts'
import { renderHealth } from './health.ts'
import { scriptText } from './script-text.ts'

/** Starts a log line that `finish.sh` writes about the end of a process. */
export const endMark = '\x1e'

/** The name of the service that writes the standard error of another to disk. Names of users hold no tilde. */
export function errorLogName(name: string): string {
  return `${name}~stderr`
}

/** The time a service has to end. Each stop writes its own value first. */
export const defaultStopMs = 10_000

/** Contents by path in the service directory. */
export type ServiceFiles = Record<string, string>

/** The files of a service directory, except `down` and `timeout-kill`, which change with each start and stop. */
export function renderService(
  definition: ServiceDefinition,
  variables: Record<string, string>,
  inner: ScriptPaths,
): ServiceFiles {
  const { name, health } = definition
  return {
    run: renderRun(definition, variables, inner),
    finish: renderFinish(definition, inner),
    'notification-fd': '3\n',
    // The finish script contains the wait before the next start, so s6 must not time it out.
    'timeout-finish': '0\n',
    'log/run': renderLog(inner, `${inner.log}/${name}/stdout`),
    ...(health && { health: renderHealth(health, stateDirectory(inner, name), inner) }),
  }
}

export function renderErrorLog(name: string, inner: ScriptPaths): ServiceFiles {
  const pipe = shellQuote(`${stateDirectory(inner, name)}/stderr`)
  const ensurePipe = `[ -p ${pipe} ] || mkfifo -m 600 ${pipe} 2>/dev/null`
  // It is opened for writing as well, so that there is no end of file and writers never get SIGPIPE.
  return { run: renderLog(inner, `${inner.log}/${name}/stderr`, [ensurePipe, `exec 0<>${pipe}`]) }
}

function stateDirectory(inner: ScriptPaths, name: string): string {
  return `${inner.run}/${name}/state`
}

// Keeps up to 4 files of 8 MiB. With -b the logger does not read faster than it can write, so a full disk or a busy one
// blocks the service instead of filling memory.
function renderLog({ shell, path }: ScriptPaths, directory: string, before: string[] = []): string {
  const setup = [`#!${shell}`, `export PATH=${shellQuote(path)}`, ...before, 'export TZ=UTC0']
  const lines = [...setup, `exec s6-log -b -- n3 s8388608 T ${shellQuote(directory)}`]
  return `${lines.join('\n')}\n`
}

/** Renders the script that `run.sh` describes. */
function renderRun(definition: ServiceDefinition, environment: Record<string, string>, inner: ScriptPaths): string {
  const { name, cmd, args, needs, health } = definition
  const directory = definition.dir ?? inner.dir
  const variables: Record<string, string> = { ...environment, ...definition.env }
  const parameters = {
    state: stateDirectory(inner, name),
    services: inner.service,
    needs: needs.join(' '),
    directory,
    directory_shown: oneLine(directory),
    search: variables.PATH ?? '',
    command_shown: `exec: "${oneLine(cmd)}"`,
    health: health ? '1' : '',
  }
  return [
    `#!${inner.shell}`,
    `export PATH=${shellQuote(inner.path)}`,
    ...Object.entries(parameters).map(([key, value]) => `${key}=${shellQuote(value)}`),
    `set -- ${[cmd, ...args].map(shellQuote).join(' ')}`,
    scriptText('run.sh'),
    ...Object.entries(variables).map(([key, value]) => `export ${key}=${shellQuote(value)}`),
    // The check is orphaned by the subshell, because a service must not have a child that it did not start.
    health ? `( ${shellQuote(`${inner.service}/${name}/health`)} >/dev/null 2>&1 & )` : 'echo >&3',
    'exec 3>&-',
    'exec "$@"',
    '',
  ].join('\n')
}

function oneLine(text: string): string {
  return text.replaceAll(/\p{Cc}/gu, '?').slice(0, 200)
}

/** Renders the script that `finish.sh` describes. */
function renderFinish({ name }: ServiceDefinition, inner: ScriptPaths): string {
  return [
    `#!${inner.shell}`,
    `export PATH=${shellQuote(inner.path)}`,
    `state=${shellQuote(stateDirectory(inner, name))}`,
    scriptText('finish.sh'),
  ].join('\n')
}
