import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { chmodSync, chownSync, mkdtempSync, realpathSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import {
  findProcess,
  findWorkingDirectory,
  listProcesses,
  readEnvironment,
} from '../../src/drivers/host/process-list.ts'
import { s6Supervisor } from '../../src/drivers/s6/supervisor.ts'
import { removeDirectory } from './directory.ts'

export const drivers = new URL('../../src/drivers/', import.meta.url).pathname

/** Creates a directory that other users can traverse, as a home must allow. */
export function temporaryDirectory(owner?: number): string {
  const directory = realpathSync(mkdtempSync(join(tmpdir(), 'berth-')))
  chmodSync(directory, 0o711)
  if (owner !== undefined) chownSync(directory, owner, owner)
  return directory
}

/** Ends the supervision tree of a home and deletes the home, in whatever state a test left it. */
export async function removeTemporaryHome(directory: string): Promise<void> {
  await s6Supervisor({ treeDirectory: `${directory}/tree`, logDirectory: `${directory}/log` }).stopTree({
    timeoutSeconds: 10,
  })
  await removeDirectory(directory)
}

/** Lists the processes whose working directory is below this one, or that a service below it started. */
export function processesBelow(directory: string): { pid: number; name: string }[] {
  return listProcesses().filter(
    ({ pid }) =>
      findWorkingDirectory(pid)?.startsWith(`${directory}/`) ||
      readEnvironment(pid).some((entry) => entry.startsWith(`BERTH_SERVICE=${directory}/`)),
  )
}

export function isRunning(pid: number): boolean {
  return findProcess(pid) !== undefined
}

/** Starts a Node program that may import drivers as `drivers/<file>`. The prefix is a command in front of node. */
export function startProgram(
  source: string,
  owner?: number,
  prefix: string[] = [],
): ChildProcess & { stdout: NodeJS.ReadableStream } {
  const code = source.replaceAll("'drivers/", `'${drivers}`)
  const node = [process.execPath, '--disable-warning=ExperimentalWarning', '--input-type=module', '-e', code]
  const [program = '', ...args] = [...prefix, ...node]
  return spawn(program, args, {
    stdio: ['ignore', 'pipe', 'inherit'],
    cwd: '/',
    env: { PATH: '/usr/bin:/bin' },
    uid: owner,
    gid: owner,
  }) as ChildProcess & { stdout: NodeJS.ReadableStream }
}

/** Reads the first line that a program prints. */
export async function firstLine(program: ReturnType<typeof startProgram>): Promise<string> {
  let text = ''
  for await (const chunk of program.stdout) {
    text += chunk
    if (text.includes('\n')) break
  }
  return text.split('\n')[0] ?? ''
}

/** Whether another user can run this checkout. */
export function canRunAs(uid: number): boolean {
  if (process.getuid?.() !== 0) return false
  return (
    spawnSync(process.execPath, ['-e', `require('fs').readFileSync('${drivers}host/process.ts')`], { uid }).status === 0
  )
}
