// Runs programs of the platform that work for one tenant, such as the PostgreSQL server of a cluster, in namespaces of
// their own: they see the paths they are given and nothing else of the host, and have no network.
import { readFileSync } from 'node:fs'
import type { Home } from '../host/home.ts'
import { findCommand } from '../host/process.ts'
import { listChildren } from '../host/process-list.ts'
import { driverProgram } from '../host/program.ts'
import { ensureConfineFilter } from './filter.ts'
import { canConfine } from './probe.ts'

export interface Confinement {
  /** Who runs the program; undefined where Berth itself runs as an ordinary user. */
  user?: { uid: number; gid: number } | undefined
  /** Capabilities that the program keeps. */
  keep?: 'dac_read_search'[] | undefined
  /** Files and directories that the program sees, at the same path as outside. */
  readable?: string[] | undefined
  writable?: string[] | undefined
  /** The names of users, which PostgreSQL needs for its `peer` authentication. */
  names?: Record<string, number> | undefined
  /** The addresses that replace those that the program listens on, in the same order. */
  listen?: { address: string; port: number }[] | undefined
  /** Whether the program then listens on one more address, for its connections to itself. */
  inside?: boolean | undefined
  /** A Unix socket outside of the program's view, which replaces the next one that it listens on. */
  socket?: string | undefined
  /** An empty file. The program starts when no process of an earlier run is left. */
  lock?: string | undefined
  /** Files that an earlier run left behind. */
  removed?: string[] | undefined
  /** The file for the pid that the supervisor knows, which is written before the program starts. */
  pidFile?: string | undefined
}

/** The command that runs a confined service. It forwards SIGHUP, SIGINT, SIGQUIT and SIGTERM to the program. */
export async function confineService(home: Home, command: string[], confinement: Confinement): Promise<string[]> {
  const isConfined = await canConfine()
  const script = ['confine/forward.sh', 'box/wait.sh'].map((name) => readFileSync(driverProgram(name), 'utf8')).join('')
  const variables = isConfined ? [] : ['env', 'BERTH_BARE=yes']
  return [...variables, '/bin/sh', '-c', script, 'confine', ...render(home, isConfined, command, confinement)]
}

/** The exit code of a job whose paths do not exist. */
export const missingPathCode = 100

/** The command that runs a confined job. It does not forward signals; the program ends with it. */
export async function confineJob(home: Home, command: string[], confinement: Confinement): Promise<string[]> {
  return render(home, await canConfine(), command, confinement)
}

function render(home: Home, isConfined: boolean, command: string[], confinement: Confinement): string[] {
  const { user, keep = [], names = {}, listen = [], inside, socket, lock, removed = [], pidFile } = confinement
  const { readable = [], writable = [] } = confinement
  const perl = findCommand('perl')
  if (perl === undefined) throw new Error('perl is not installed: apt-get install perl')
  const always = [
    ...(user === undefined ? [] : ['--user', String(user.uid), String(user.gid)]),
    ...keep.flatMap((name) => ['--keep', name]),
    ...(lock === undefined ? [] : ['--lock', lock]),
    ...removed.flatMap((path) => ['--remove', path]),
    ...(pidFile === undefined ? [] : ['--pid', pidFile]),
  ]
  const view = () => [
    '--filter',
    ensureConfineFilter(home),
    ...readable.flatMap((path) => ['--read', path]),
    ...writable.flatMap((path) => ['--write', path]),
    ...Object.entries(names).flatMap(([name, uid]) => ['--name', String(uid), name]),
    ...listen.flatMap(({ address, port }) => ['--listen', address, String(port)]),
    ...(inside ? ['--inside'] : []),
    ...(socket === undefined ? [] : ['--socket', socket]),
  ]
  const options = isConfined ? [...always, ...view()] : always
  return [perl, driverProgram('confine/confine.pl'), process.arch, ...options, '--', ...command]
}

/** The pid of a confined program, given that of its service, or undefined while it starts. */
export function findConfined(pid: number, name: string): number | undefined {
  for (const child of listChildren(pid)) {
    if (child.name === name) return child.pid
    const found = findConfined(child.pid, name)
    if (found !== undefined) return found
  }
  return undefined
}
