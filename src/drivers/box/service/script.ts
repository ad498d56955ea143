// The programs with which the supervisor of a box runs a service. Words of a user reach them as quoted words only.
import type { ServiceDefinition } from '../../../model/sandbox/service.ts'
import { quote } from '../../host/shell.ts'
import type { ScriptPlaces } from '../paths.ts'
import { renderHealth } from './health.ts'

/** First on a line of a log: what follows is said by us about the end of a process, not by it. */
export const endMark = '\x1e'

/** Beside a service stands the one that writes its standard error to disk. No service can have such a name. */
export function errorLogName(name: string): string {
  return `${name}~stderr`
}

/** Longer than anything a caller may ask for: the caller's own time is written here with each stop. */
export const defaultStopMs = 10_000

export type ServiceFiles = Record<string, string>

/** The files of the directory of a service, except those that say whether and how fast it is to stop. */
export function renderService(
  definition: ServiceDefinition,
  variables: Record<string, string>,
  inner: ScriptPlaces,
): ServiceFiles {
  const { name, health } = definition
  return {
    run: renderRun(definition, variables, inner),
    finish: renderFinish(definition, inner),
    'notification-fd': '3\n',
    // The wait before the next start is part of it.
    'timeout-finish': '0\n',
    'log/run': renderLog(inner, `${inner.log}/${name}/stdout`),
    ...(health && { health: renderHealth(health, stateDirectory(inner, name), inner) }),
  }
}

export function renderErrorLog(name: string, inner: ScriptPlaces): ServiceFiles {
  const pipe = quote(`${stateDirectory(inner, name)}/stderr`)
  // Open for writing as well, so that it never ends and nobody who writes to it is ever cut off.
  return { run: renderLog(inner, `${inner.log}/${name}/stderr`, [ensurePipe(pipe), `exec 0<>${pipe}`]) }
}

function stateDirectory(inner: ScriptPlaces, name: string): string {
  return `${inner.run}/${name}/state`
}

function ensurePipe(pipe: string): string {
  return `[ -p ${pipe} ] || mkfifo -m 600 ${pipe} 2>/dev/null`
}

// Up to 4 files of 8 MiB. With -b the logger does not read faster than it can write, which slows down the service and
// nothing else.
function renderLog({ shell, path }: ScriptPlaces, directory: string, before: string[] = []): string {
  const words = [`#!${shell}`, `export PATH=${quote(path)}`, ...before, 'export TZ=UTC0']
  const lines = [...words, `exec s6-log -b -- n3 s8388608 T ${quote(directory)}`]
  return `${lines.join('\n')}\n`
}

function renderRun(definition: ServiceDefinition, environment: Record<string, string>, inner: ScriptPlaces): string {
  const { cmd, args, needs, dir, health } = definition
  const state = stateDirectory(inner, definition.name)
  const variables: Record<string, string> = { ...environment, ...definition.env }
  return [
    `#!${inner.shell}`,
    `export PATH=${quote(inner.path)}`,
    `state=${quote(state)}`,
    ...endEarlierLife,
    ': > "$state/problem"',
    noteClock,
    ...(health ? [': > "$state/health"'] : []),
    ensurePipe('"$state/stderr"'),
    'exec </dev/null 2<>"$state/stderr"',
    ...needs.map((need) => waitFor(`${inner.service}/${need}`)),
    'fail() { echo "$2" > "$state/problem"; echo "$2" >&2; exit "$1"; }',
    `cd ${quote(dir ?? inner.dir)} 2>/dev/null || fail 126 ${quote(`chdir ${oneLine(dir ?? inner.dir)}: no such directory`)}`,
    `set -- ${[cmd, ...args].map(quote).join(' ')}`,
    ...findProgram(cmd, variables.PATH ?? ''),
    'count=0',
    '[ -s "$state/restarts" ] && read -r count rest < "$state/restarts"',
    noteClock,
    'echo "$$ $count" > "$state/begun"',
    // Nothing of ours is used from here on, because names of a user may be the same.
    'unset state count clock rest OLDPWD',
    ...Object.entries(variables).map(([key, value]) => `export ${key}=${quote(value)}`),
    // As a child of nobody: a program must not find a child that it did not start.
    health ? `( ${quote(`${inner.service}/${definition.name}/health`)} >/dev/null 2>&1 & )` : 'echo >&3',
    'exec 3>&-',
    'exec "$@"',
    '',
  ].join('\n')
}

// When s6-supervise itself is killed its process lives on unwatched, and a second one would fight it for its port. The
// number of a process and the time of its start are of one process only. The rest of the group is ended by this number
// when the process itself is gone.
const toStartTime = `set -- \${line##*) } && shift 19`
const endEarlierLife = [
  '[ -s "$state/group" ] && read -r old began < "$state/group"',
  'if [ -n "$old" ] && [ -r "/proc/$old/stat" ] && read -r line < "/proc/$old/stat"; then',
  `  ${toStartTime}`,
  '  [ "$1" = "$began" ] && kill -KILL "-$old"',
  'fi',
  'read -r line < "/proc/$$/stat"',
  toStartTime,
  'echo "$$ $1" > "$state/group"',
  'unset old began line',
]

/** How long it ran is told by the time since the machine started, which no shell needs a program for. */
const noteClock = 'read -r clock rest < /proc/uptime; echo "$clock" > "$state/clock"'

function waitFor(service: string): string {
  const directory = quote(service)
  return `until s6-svok ${directory} && s6-svwait -U ${directory} 2>/dev/null; do sleep 0.1; done`
}

// Before it is reported as started. What goes wrong after this, such as a script whose interpreter is missing, ends
// with the same codes.
function findProgram(cmd: string, path: string): string[] {
  const shown = quote(`exec: "${oneLine(cmd)}"`)
  if (cmd.includes('/')) {
    return [
      `[ -e "$1" ] || fail 127 ${shown}': not found'`,
      `[ -f "$1" ] && [ -x "$1" ] || fail 126 ${shown}': permission denied'`,
    ]
  }
  return [
    'code=127 why=": not found"',
    ...path.split(':').map((entry) => {
      const file = `${quote(entry === '' ? '.' : entry)}/"$1"`
      return `[ $code != 0 ] && [ -f ${file} ] && { code=126 why=": permission denied"; [ -x ${file} ] && code=0; }`
    }),
    `[ $code = 0 ] || fail $code ${shown}"$why"`,
    'unset code why',
  ]
}

function oneLine(text: string): string {
  return text.replaceAll(/\p{Cc}/gu, '?').slice(0, 200)
}

/** A run that lasted this long was no failure to start. */
const steadySeconds = 10

function renderFinish({ name }: ServiceDefinition, inner: ScriptPlaces): string {
  return [
    `#!${inner.shell}`,
    `export PATH=${quote(inner.path)}`,
    `state=${quote(stateDirectory(inner, name))}`,
    ensurePipe('"$state/stderr"'),
    'exec </dev/null 2<>"$state/stderr"',
    'if [ "$1" = 256 ]; then code=$((128 + $2)); else code=$1; fi',
    'wanted=$(s6-svstat -o wantedup . 2>/dev/null)',
    'count=0 short=0 delay=0 problem=',
    'if [ "$wanted" = true ]; then',
    '  [ -s "$state/restarts" ] && read -r count short rest < "$state/restarts"',
    '  [ -s "$state/problem" ] && read -r problem < "$state/problem"',
    '  read -r clock rest < /proc/uptime',
    '  begun=$clock',
    '  [ -s "$state/clock" ] && read -r begun < "$state/clock"',
    '  count=$((count + 1))',
    `  if [ $((\${clock%%.*} - \${begun%%.*})) -ge ${steadySeconds} ] && [ -z "$problem" ]; then short=0`,
    '  else',
    '    short=$((short + 1))',
    '    case $short in 1) delay=1 ;; 2) delay=2 ;; 3) delay=4 ;; 4) delay=8 ;; 5) delay=16 ;; *) delay=30 ;; esac',
    '  fi',
    '  echo "$count $short $delay $problem" > "$state/restarts"',
    'fi',
    ...endGroup,
    // A last line without an end gets one; `readLine` of the log takes the empty line away where there was none.
    `printf '\\n\\036exited with code %s\\n' "$code"`,
    `printf '\\n\\036exited with code %s\\n' "$code" >&2`,
    '[ "$delay" = 0 ] && exit 0',
    'echo "$count $short $delay $problem" > "$state/restarts"',
    ensurePipe('"$state/wake"'),
    // Whoever wants it sooner, or not at all, writes to the pipe.
    'timeout "$delay" head -c 1 0<>"$state/wake" >/dev/null 2>&1',
    'exit 0',
    '',
  ].join('\n')
}

// Children hold ports and files. They get a moment to end in peace.
const endGroup = [
  'read -r group rest < "$state/group"',
  'case $group in *[!0-9]* | 0 | 1 | "") group= ;; esac',
  'if [ -n "$group" ] && kill -TERM "-$group" 2>/dev/null; then',
  '  turns=0',
  '  while [ $turns -lt 100 ] && kill -0 "-$group" 2>/dev/null; do sleep 0.02; turns=$((turns + 1)); done',
  '  kill -KILL "-$group" 2>/dev/null',
  'fi',
]
