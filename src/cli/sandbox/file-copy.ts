// Copies between this machine and a sandbox. A file is one request; a directory is a tar archive that is packed on one
// side and unpacked on the other.

import { spawn } from 'node:child_process'
import { createReadStream, createWriteStream, type Stats, statSync } from 'node:fs'
import { chmod, rename, rm } from 'node:fs/promises'
import { basename, join, posix } from 'node:path'
import { PassThrough, Readable, Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { WrittenFile } from '../api-types.ts'
import { ApiError, CommandError, UsageError } from '../errors.ts'
import { formatCount, sanitize } from '../output.ts'
import { openStream } from '../stream.ts'
import { commandPath } from './exec.ts'
import { type SandboxCli, sandboxHome, sandboxPath } from './find.ts'
import { runSession } from './session.ts'
import { unpack } from './tar.ts'

const standardStream = '-'

export async function put(
  cli: SandboxCli,
  name: string,
  local: string,
  path: string | undefined,
  mode: string | undefined,
): Promise<void> {
  if (local === standardStream) {
    if (path === undefined) throw new UsageError('standard input needs a target path: files put <sandbox> - <path>')
    const size = await writeFile(cli, name, path, cli.streams.input as Readable, mode)
    return report(cli, { path, size }, `Wrote ${formatCount(size, 'byte')} to ${path}.`)
  }
  const stats = statLocal(local)
  const plan = planCopy(path, local, process.cwd())
  if (stats.isDirectory()) await putDirectory(cli, name, local, plan)
  else await putFile(cli, name, local, plan.path, mode ?? (stats.mode & 0o777).toString(8).padStart(4, '0'))
}

function statLocal(local: string): Stats {
  const stats = statSync(local, { throwIfNoEntry: false })
  if (stats) return stats
  throw new UsageError(`no such file: ${local}`)
}

export interface CopyPlan {
  path: string
  /** The name to append when the path is an existing directory. */
  nameInDirectory?: string
}

/** Follows cp: copies into a directory or to a new name; a source that ends in `/.` copies only its contents. */
export function planCopy(target: string | undefined, source: string, base: string): CopyPlan {
  if (/(^|\/)\.\/?$/.test(source)) return { path: target ?? '.' }
  const ownName = posix.basename(posix.resolve(base, source))
  if (target === undefined || target.endsWith('/')) return { path: `${target ?? ''}${ownName}` || '.' }
  return { path: target, nameInDirectory: ownName }
}

async function putFile(cli: SandboxCli, name: string, local: string, target: string, mode: string): Promise<void> {
  let path = target
  try {
    await writeFile(cli, name, path, createReadStream(local), mode)
  } catch (error) {
    if (errorCodeOf(error) !== 'EISDIR') throw error
    path = posix.join(target, basename(local))
    await writeFile(cli, name, path, createReadStream(local), mode)
  }
  report(cli, { path }, `Copied ${local} to ${path}.`)
}

async function writeFile(
  cli: SandboxCli,
  name: string,
  path: string,
  body: Readable,
  mode: string | undefined,
): Promise<number> {
  const query = new URLSearchParams({ path, workingDir: sandboxHome, ...(mode === undefined ? {} : { mode }) })
  const asked = { method: 'PUT', path: `${sandboxPath(name)}/fs/write?${query}`, body }
  const answer = await openStream(cli.session(), asked)
  const written: WrittenFile = JSON.parse(String(Buffer.concat(await answer.toArray())))
  return written.size
}

/** Takes the target and the name to append if it is a directory. Prints the final path and unpacks there. */
const unpackScript = `
if [ -n "$2" ] && [ -d "$1" ]; then set -- "$1/$2"; fi
mkdir -p -- "$1" && printf %s "$1" && exec tar -xf - --no-same-owner -C "$1"`

async function putDirectory(cli: SandboxCli, name: string, local: string, plan: CopyPlan): Promise<void> {
  const packing = spawn('tar', ['-cf', '-', '-C', local, '.'], { stdio: ['ignore', 'pipe', 'pipe'] })
  const stderr = packing.stderr.toArray()
  const packed = new Promise<void>((resolve, reject) => {
    packing.once('error', (error) => reject(new CommandError(`cannot start tar on this machine: ${error.message}`)))
    packing.once('close', async (code) => {
      if (code === 0) resolve()
      else reject(new CommandError(`tar: ${(await stderr).join('').trim()}`))
    })
  })
  packed.catch(() => {}) // an error of the sandbox is reported first
  const output = new PassThrough()
  try {
    const argv = ['sh', '-c', unpackScript, 'sh', plan.path, plan.nameInDirectory ?? '']
    // Node discards unread output of a process that has exited, and a small archive is packed before it is read.
    const input = packing.stdout.pipe(new PassThrough())
    await runInSandbox(cli, name, argv, { input, output })
  } finally {
    packing.kill()
  }
  await packed
  const path = String(output.read() ?? '')
  report(cli, { path }, `Copied ${local} to ${path}.`)
}

export async function get(cli: SandboxCli, name: string, path: string, local: string | undefined): Promise<void> {
  try {
    await getFile(cli, name, path, local)
  } catch (error) {
    if (errorCodeOf(error) !== 'EISDIR') throw error
    if (local === standardStream) throw new UsageError(`${path} is a directory and cannot be printed`)
    await getDirectory(cli, name, path, resolveLocalPath(planCopy(local, path, sandboxHome)))
  }
}

export async function getFile(cli: SandboxCli, name: string, path: string, local: string | undefined): Promise<void> {
  const query = new URLSearchParams({ path, workingDir: sandboxHome })
  const answer = await openStream(cli.session(), { method: 'GET', path: `${sandboxPath(name)}/fs/read?${query}` })
  if (local === standardStream) return pipeline(answer, cli.streams.output, { end: false })
  const target = resolveLocalPath(planCopy(local, path, sandboxHome))
  // The rename makes the file appear at once; an interrupted copy leaves the previous file.
  const part = `${target}.part-${process.pid}`
  try {
    await pipeline(answer, createWriteStream(part, { flags: 'wx' }))
    await chmod(part, Number.parseInt(String(answer.headers['x-file-mode'] ?? '0644'), 8) & 0o777 & ~process.umask())
    await rename(part, target)
  } catch (error) {
    await rm(part, { force: true })
    throw new CommandError(`cannot write ${target}: ${(error as Error).message}`, { cause: error })
  }
  report(cli, { path: target }, `Copied ${path} to ${target}.`)
}

function resolveLocalPath({ path, nameInDirectory }: CopyPlan): string {
  const isDirectory = statSync(path, { throwIfNoEntry: false })?.isDirectory()
  return isDirectory && nameInDirectory !== undefined ? join(path, nameInDirectory) : path
}

async function getDirectory(cli: SandboxCli, name: string, path: string, target: string): Promise<void> {
  const archive = new PassThrough()
  const unpacking = unpack(archive, target)
  unpacking.catch((error) => archive.destroy(error))
  try {
    await runInSandbox(cli, name, ['tar', '-cf', '-', '-C', path, '.'], { output: archive })
  } finally {
    archive.end()
  }
  const { count, skipped } = await unpacking
  for (const each of skipped) cli.terminal().note(`skipped ${sanitize(each)}: not a file, directory or link`)
  report(cli, { path: target, count, skipped }, `Copied ${path} to ${target} (${formatCount(count, 'file')}).`)
}

export async function makeDirectories(cli: SandboxCli, name: string, paths: string[]): Promise<void> {
  await runInSandbox(cli, name, ['mkdir', '-p', '--', ...paths], {})
  report(cli, { paths }, `Created ${paths.join(', ')}.`)
}

interface InputOutput {
  input?: Readable
  output?: Writable
}

/** Runs a helper program in the sandbox and throws with its standard error when it fails. */
async function runInSandbox(
  cli: SandboxCli,
  name: string,
  argv: string[],
  { input, output }: InputOutput,
): Promise<void> {
  const stderrChunks: Buffer[] = []
  const errors = new Writable({
    write(chunk: Buffer, _, taken) {
      if (stderrChunks.length < 100) stderrChunks.push(chunk)
      taken()
    },
  })
  const nowhere = new Writable({ write: (_, __, taken) => taken() })
  const streams = { input: input ?? Readable.from([]), output: output ?? nowhere, errors }
  const path = commandPath(name, argv, streams, { stdin: input !== undefined })
  const sessionOptions = { streams, takesInput: input !== undefined, canDetach: false }
  const outcome = await runSession(cli.session(), path, sessionOptions)
  if (outcome.is === 'ended' && outcome.code === 0) return
  throw new CommandError(String(Buffer.concat(stderrChunks)).trim() || `${argv[0]} failed in the sandbox`)
}

function errorCodeOf(error: unknown): unknown {
  return error instanceof ApiError ? (error.body as { code?: unknown }).code : undefined
}

function report(cli: SandboxCli, answer: object, sentence: string): void {
  const terminal = cli.terminal()
  if (terminal.json) terminal.print(JSON.stringify(answer, null, 2))
  else terminal.note(sanitize(sentence))
}
