// Copies between this machine and a sandbox. Files go as requests, directories as an archive that is packed on one side
// and unpacked on the other.

import { spawn } from 'node:child_process'
import { createReadStream, createWriteStream, type Stats, statSync } from 'node:fs'
import { chmod, rename, rm } from 'node:fs/promises'
import { basename, join, posix } from 'node:path'
import { PassThrough, Readable, Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { WrittenFile } from '../api-types.ts'
import { Failure, Misuse, Refusal } from '../failure.ts'
import { countText, visible } from '../output.ts'
import { openStream } from '../stream.ts'
import { commandPath } from './exec.ts'
import { type SandboxCli, sandboxHome, sandboxPath } from './find.ts'
import { runSession } from './session.ts'
import { unpack } from './tar.ts'

const pipe = '-'

export async function put(
  cli: SandboxCli,
  name: string,
  local: string,
  path: string | undefined,
  mode: string | undefined,
): Promise<void> {
  if (local === pipe) {
    if (path === undefined) throw new Misuse('say where standard input goes: files put <sandbox> - <path>')
    const size = await write(cli, name, path, cli.streams.input as Readable, mode)
    return tell(cli, { path, size }, `Wrote ${countText(size, 'byte')} to ${path}.`)
  }
  const facts = localFacts(local)
  const plan = planCopy(path, local, process.cwd())
  if (facts.isDirectory()) await putDirectory(cli, name, local, plan)
  else await putFile(cli, name, local, plan.path, mode ?? (facts.mode & 0o777).toString(8).padStart(4, '0'))
}

function localFacts(local: string): Stats {
  const facts = statSync(local, { throwIfNoEntry: false })
  if (facts) return facts
  throw new Misuse(`there is no file ${local} here`)
}

export interface Plan {
  path: string
  /** The name to take below the path when that is a directory already. */
  orInto?: string
}

/** As cp does it: into a directory, or to a new name; with a dot as the last part of the source, only what is in it. */
export function planCopy(target: string | undefined, source: string, base: string): Plan {
  if (/(^|\/)\.\/?$/.test(source)) return { path: target ?? '.' }
  const own = posix.basename(posix.resolve(base, source))
  if (target === undefined || target.endsWith('/')) return { path: `${target ?? ''}${own}` || '.' }
  return { path: target, orInto: own }
}

async function putFile(cli: SandboxCli, name: string, local: string, target: string, mode: string): Promise<void> {
  let path = target
  try {
    await write(cli, name, path, createReadStream(local), mode)
  } catch (error) {
    if (codeOf(error) !== 'EISDIR') throw error
    path = posix.join(target, basename(local))
    await write(cli, name, path, createReadStream(local), mode)
  }
  tell(cli, { path }, `Copied ${local} to ${path}.`)
}

async function write(
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

/** Says where to and unpacks there. */
const unpackScript = `
if [ -n "$2" ] && [ -d "$1" ]; then set -- "$1/$2"; fi
mkdir -p -- "$1" && printf %s "$1" && exec tar -xf - --no-same-owner -C "$1"`

async function putDirectory(cli: SandboxCli, name: string, local: string, plan: Plan): Promise<void> {
  const packing = spawn('tar', ['-cf', '-', '-C', local, '.'], { stdio: ['ignore', 'pipe', 'pipe'] })
  const problem = packing.stderr.toArray()
  const packed = new Promise<void>((resolve, reject) => {
    packing.once('error', (error) => reject(new Failure(`tar cannot be started here: ${error.message}`)))
    packing.once('close', async (code) => {
      if (code === 0) resolve()
      else reject(new Failure(`tar: ${(await problem).join('').trim()}`))
    })
  })
  packed.catch(() => {}) // what the other side says comes first
  const output = new PassThrough()
  try {
    const argv = ['sh', '-c', unpackScript, 'sh', plan.path, plan.orInto ?? '']
    // What nobody reads by the time that a program ends is thrown away, and a small archive is packed before then.
    const input = packing.stdout.pipe(new PassThrough())
    await runInside(cli, name, argv, { input, output })
  } finally {
    packing.kill()
  }
  await packed
  const path = String(output.read() ?? '')
  tell(cli, { path }, `Copied ${local} to ${path}.`)
}

export async function get(cli: SandboxCli, name: string, path: string, local: string | undefined): Promise<void> {
  try {
    await getFile(cli, name, path, local)
  } catch (error) {
    if (codeOf(error) !== 'EISDIR') throw error
    if (local === pipe) throw new Misuse(`${path} is a directory, which cannot be printed`)
    await getDirectory(cli, name, path, intoDirectory(planCopy(local, path, sandboxHome)))
  }
}

export async function getFile(cli: SandboxCli, name: string, path: string, local: string | undefined): Promise<void> {
  const query = new URLSearchParams({ path, workingDir: sandboxHome })
  const answer = await openStream(cli.session(), { method: 'GET', path: `${sandboxPath(name)}/fs/read?${query}` })
  if (local === pipe) return pipeline(answer, cli.streams.output, { end: false })
  const target = intoDirectory(planCopy(local, path, sandboxHome))
  // It appears whole: a copy that breaks off leaves what was there.
  const part = `${target}.part-${process.pid}`
  try {
    await pipeline(answer, createWriteStream(part, { flags: 'wx' }))
    await chmod(part, Number.parseInt(String(answer.headers['x-file-mode'] ?? '0644'), 8) & 0o777 & ~process.umask())
    await rename(part, target)
  } catch (error) {
    await rm(part, { force: true })
    throw new Failure(`${target} cannot be written: ${(error as Error).message}`, { cause: error })
  }
  tell(cli, { path: target }, `Copied ${path} to ${target}.`)
}

function intoDirectory({ path, orInto }: Plan): string {
  const isDirectory = statSync(path, { throwIfNoEntry: false })?.isDirectory()
  return isDirectory && orInto !== undefined ? join(path, orInto) : path
}

async function getDirectory(cli: SandboxCli, name: string, path: string, target: string): Promise<void> {
  const archive = new PassThrough()
  const unpacking = unpack(archive, target)
  unpacking.catch((error) => archive.destroy(error))
  try {
    await runInside(cli, name, ['tar', '-cf', '-', '-C', path, '.'], { output: archive })
  } finally {
    archive.end()
  }
  const { count, skipped } = await unpacking
  for (const each of skipped) cli.terminal().note(`left out: ${visible(each)} is no file, directory or link`)
  tell(cli, { path: target, count, skipped }, `Copied ${path} to ${target} (${countText(count, 'file')}).`)
}

export async function makeDirectories(cli: SandboxCli, name: string, paths: string[]): Promise<void> {
  await runInside(cli, name, ['mkdir', '-p', '--', ...paths], {})
  tell(cli, { paths }, `Made ${paths.join(', ')}.`)
}

interface Ends {
  input?: Readable
  output?: Writable
}

/** Runs a program whose output is not for people; what it complains about is the failure. */
async function runInside(cli: SandboxCli, name: string, argv: string[], { input, output }: Ends): Promise<void> {
  const complaints: Buffer[] = []
  const errors = new Writable({
    write(chunk: Buffer, _, taken) {
      if (complaints.length < 100) complaints.push(chunk)
      taken()
    },
  })
  const nowhere = new Writable({ write: (_, __, taken) => taken() })
  const streams = { input: input ?? Readable.from([]), output: output ?? nowhere, errors }
  const path = commandPath(name, argv, streams, { stdin: input !== undefined })
  const joined = { streams, takesInput: input !== undefined, canLeave: false }
  const outcome = await runSession(cli.session(), path, joined)
  if (outcome.is === 'ended' && outcome.code === 0) return
  throw new Failure(String(Buffer.concat(complaints)).trim() || `${argv[0]} failed in the sandbox`)
}

function codeOf(error: unknown): unknown {
  return error instanceof Refusal ? (error.body as { code?: unknown }).code : undefined
}

function tell(cli: SandboxCli, answer: object, sentence: string): void {
  const terminal = cli.terminal()
  if (terminal.json) terminal.print(JSON.stringify(answer, null, 2))
  else terminal.note(visible(sentence))
}
