// What s6 knows of a service is one directory. It appears under its name by a rename, whole, and is changed file by
// file, each by a rename, so that s6 never runs half of a script.
import { randomBytes } from 'node:crypto'
import { existsSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { readTextIfPresent } from '../host/file.ts'
import { baseEnvironment, findCommand } from '../host/process.ts'
import { signalName } from './status.ts'

export interface ServiceSpec {
  command: string[]
  env?: Record<string, string> | undefined
  uid?: number | undefined
  gid?: number | undefined
  cwd?: string | undefined
  stopSignal?: NodeJS.Signals | undefined
  /** After this long the stop signal is followed by SIGKILL. */
  stopTimeoutSeconds?: number | undefined
  /** Run one after the other before each start, as the same user; a failing one means another try a second later. */
  beforeStart?: string[][] | undefined
  /** Files `cgroup.procs` of the control groups to join. The groups are made when a reboot took them away. */
  cgroup?: string[] | undefined
  /** It is not started again when it has ended, and how it ended is kept. What ensures it later changes nothing. */
  once?: boolean | undefined
  /** What runs after each end of it and decides by its own end whether there is a next life: 125 means none. */
  finish?: string | undefined
  /** What reads its output, instead of the usual log. */
  logger?: string | undefined
}

export interface ServicePlace {
  treeDirectory: string
  logDirectory: string
}

export const defaultStopTimeoutSeconds = 10

type Definition = Record<'run' | 'log/run' | 'down-signal' | 'timeout-kill', string> &
  Partial<Record<'finish' | 'timeout-finish', string>>

export function serviceDirectory(place: ServicePlace, name: string): string {
  if (!/^[a-z0-9][a-z0-9.-]*$/.test(name)) throw new Error(`not a service name: ${JSON.stringify(name)}`)
  return `${place.treeDirectory}/${name}`
}

/** A name beside the services that s6 does not look at. `~` is in no service name, so the owner can be told. */
export function hiddenDirectory(place: ServicePlace, purpose: 'new' | 'removed', name: string): string {
  return `${place.treeDirectory}/.${purpose}~${name}~${randomBytes(6).toString('hex')}`
}

/** An entry in the environment of every process of a service, by which those that left their session are found. */
export function serviceMark(place: ServicePlace, name: string): string {
  return `BERTH_SERVICE=${place.treeDirectory}/${name}`
}

export function renderDefinition(place: ServicePlace, name: string, spec: ServiceSpec): Definition {
  return {
    run: renderRun(spec, serviceMark(place, name)),
    'log/run': spec.logger ?? `#!/bin/sh\nexec s6-log n10 s1000000 T ${quote(`${place.logDirectory}/${name}`)}\n`,
    'down-signal': `${spec.stopSignal ?? 'SIGTERM'}\n`,
    'timeout-kill': `${(spec.stopTimeoutSeconds ?? defaultStopTimeoutSeconds) * 1000}\n`,
    // Without a limit: a finish script that is killed could not say that the service has ended for good.
    ...(spec.once && { finish: renderFinish(), 'timeout-finish': '0\n' }),
    ...(spec.finish !== undefined && { finish: spec.finish, 'timeout-finish': '0\n' }),
  }
}

// Exit code 125 tells s6 not to start it again, and the `down` file tells the next tree. A service that was told to
// stop has not ended by itself: the next tree starts it over.
function renderFinish(): string {
  return [
    '#!/bin/sh',
    `PATH=${quote(baseEnvironment.PATH)}`,
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
    // With an empty environment. It exports its own: variables given to env(1) as arguments would be readable by every
    // user for a moment.
    '#!/usr/bin/env -iS /bin/sh -e',
    'exec 2>&1',
    'umask 022',
    ...killEarlierLife(mark),
    ...(spec.cgroup ?? []).map(joinCgroup),
    `cd ${quote(spec.cwd ?? '/')}`,
    'unset PWD OLDPWD',
    ...variables.map(([key, value]) => `export ${variableName(key)}=${quote(value)}`),
    `export ${quote(mark)}`,
    ...(spec.beforeStart ?? []).map((command) => renderCommand(command, spec)),
    `exec ${renderCommand(spec.command, spec)}`,
    '',
  ].join('\n')
}

// Children that outlive a crashed main process hold its ports, and when s6-supervise itself is killed the main process
// lives on unwatched. The script does not find itself: what it exports is not in the environment it was started with.
// To look at all processes takes longer than most services take to start, and the first life has none before it.
function killEarlierLife(mark: string): string[] {
  return [
    `PATH=${quote(baseEnvironment.PATH)}`,
    'if [ -e lived ]; then',
    `  for pid in $(grep -lzxF -e ${quote(mark)} /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3); do`,
    '    kill -9 "$pid" 2>/dev/null || :',
    '  done',
    'else : > lived; fi',
  ]
}

// While the script is still the supervisor's user. A service without its limits is better than none. As a single thread
// where that is possible: to move a process of many, the kernel waits until all processors have come by.
function joinCgroup(procs: string): string {
  const directory = dirname(procs)
  const [group, threads] = [quote(directory), quote(`${directory}/tasks`)]
  const join = `if [ -e ${threads} ]; then echo 0 > ${threads}; else echo 0 > ${quote(procs)}; fi`
  return `{ { [ -d ${group} ] || mkdir -p ${group}; } && ${join}; } 2>/dev/null || echo 'runs without the limits of' ${quote(procs)}`
}

function renderCommand(command: string[], spec: ServiceSpec): string {
  if (!command[0] || command[0].startsWith('-')) throw new Error(`not a command: ${JSON.stringify(command)}`)
  const words = command.map(quote).join(' ')
  if (spec.uid === undefined) return words
  return `${applyUidGid()} -u ${spec.uid} -g ${spec.gid ?? spec.uid} -G '' ${words}`
}

// By its full path, because the PATH of the service is the service's own.
function applyUidGid(): string {
  const path = findCommand('s6-applyuidgid')
  if (path === undefined) throw new Error('s6 is not installed: apt-get install s6')
  return path
}

function variableName(name: string): string {
  if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) throw new Error(`not a variable name: ${JSON.stringify(name)}`)
  return name
}

/** One word of a shell, whatever is in it. */
export function quote(word: string): string {
  if (word.includes('\0')) throw new Error('a word of a command cannot hold a zero byte')
  return `'${word.replaceAll("'", `'\\''`)}'`
}

/** Afterwards the directory holds the definition. `hasPendingChange` says whether the service has yet to see it. */
export function ensureDefinition(place: ServicePlace, name: string, definition: Definition): void {
  const directory = serviceDirectory(place, name)
  ensureFirstDefinition(place, name, definition)
  const stale = Object.entries(definition).filter(([file, text]) => readTextIfPresent(`${directory}/${file}`) !== text)
  if (stale.length === 0) return
  // Noted before the first file changes: a crash from here on still ends in a restart.
  writeFileSync(`${directory}/changed`, '')
  for (const [file, text] of stale) {
    writeFileSync(`${directory}/${file}.next`, text, { mode: modeOf(file) })
    renameSync(`${directory}/${file}.next`, `${directory}/${file}`)
  }
}

/** Nothing when there is a directory of this name. */
export function ensureFirstDefinition(place: ServicePlace, name: string, definition: Definition): void {
  if (!existsSync(serviceDirectory(place, name))) createDirectory(place, name, definition)
}

function createDirectory(place: ServicePlace, name: string, definition: Definition): void {
  const fresh = hiddenDirectory(place, 'new', name)
  mkdirSync(`${fresh}/log`, { recursive: true, mode: 0o700 })
  for (const [file, text] of Object.entries(definition)) writeFileSync(`${fresh}/${file}`, text, { mode: modeOf(file) })
  try {
    renameSync(fresh, serviceDirectory(place, name))
  } catch (error) {
    rmSync(fresh, { recursive: true, force: true })
    // Another process made it first; what it wrote is compared next.
    if (!existsSync(serviceDirectory(place, name))) throw error
  }
}

/** A service that has nothing to log because it writes the log of another. Repeating is harmless. */
export function ensureLogger(place: ServicePlace, name: string, run: string): void {
  const directory = serviceDirectory(place, name)
  if (existsSync(directory)) return
  const fresh = hiddenDirectory(place, 'new', name)
  mkdirSync(fresh, { recursive: true, mode: 0o700 })
  writeFileSync(`${fresh}/run`, run, { mode: modeOf('run') })
  renameSync(fresh, directory)
}

function modeOf(file: string): number {
  return file.endsWith('run') || file === 'finish' ? 0o700 : 0o600
}

export function hasPendingChange(place: ServicePlace, name: string): boolean {
  return existsSync(`${serviceDirectory(place, name)}/changed`)
}

export function clearPendingChange(place: ServicePlace, name: string): void {
  rmSync(`${serviceDirectory(place, name)}/changed`, { force: true })
}

/** A service with a `down` file is not started by s6 itself, also not after a reboot. */
export function isMarkedDown(place: ServicePlace, name: string): boolean {
  return existsSync(`${serviceDirectory(place, name)}/down`)
}

/** How a service that runs once has ended, also in the life of an earlier tree. */
export function findEnd(place: ServicePlace, name: string): { exitCode?: number; signal?: string } | undefined {
  const end = /^(\d+) (\d+)$/m.exec(readTextIfPresent(`${serviceDirectory(place, name)}/down`) ?? '')
  if (!end) return undefined
  if (Number(end[1]) < 256) return { exitCode: Number(end[1]) }
  return { signal: signalName(Number(end[2])) }
}

export function markDown(place: ServicePlace, name: string): void {
  writeFileSync(`${serviceDirectory(place, name)}/down`, '')
}

export function clearDown(place: ServicePlace, name: string): void {
  rmSync(`${serviceDirectory(place, name)}/down`, { force: true })
}
