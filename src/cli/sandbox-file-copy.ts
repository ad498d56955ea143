// Copies between this machine and a sandbox. Files go as requests, directories as an archive that is packed on one side
// and unpacked on the other.
import { spawn } from 'node:child_process'
import { createReadStream, createWriteStream, type Stats, statSync } from 'node:fs'
import { chmod, rename, rm } from 'node:fs/promises'
import { basename, join, posix } from 'node:path'
import { PassThrough, Readable, Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { Failure, Misuse, Refusal } from './failure.ts'
import { countText, visible } from './output.ts'
import { commandPath } from './sandbox-exec.ts'
import { type SandboxCli, sandboxHome, sandboxPath } from './sandbox-find.ts'
import { runSession } from './sandbox-session.ts'
import { openStream } from './sandbox-stream.ts'
import { unpack } from './sandbox-tar.ts'

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
  const target = placeIn(path, local)
  if (facts.isDirectory()) await putDirectory(cli, name, local, target)
  else await putFile(cli, name, local, target, mode ?? (facts.mode & 0o777).toString(8).padStart(4, '0'))
}

function localFacts(local: string): Stats {
  const facts = statSync(local, { throwIfNoEntry: false })
  if (facts) return facts
  throw new Misuse(`there is no file ${local} here`)
}

/** Without a name of its own, or with only that of a directory, a copy has the name of what it is a copy of. */
export function placeIn(target: string | undefined, source: string): string {
  if (target !== undefined && !target.endsWith('/')) return target
  const own = basename(posix.resolve('/', source)) || basename(process.cwd())
  return `${target ?? ''}${/^\.{1,2}\/*$/.test(source) ? basename(join(process.cwd(), source)) : own}`
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
  return JSON.parse(String(Buffer.concat(await answer.toArray()))).size
}

async function putDirectory(cli: SandboxCli, name: string, local: string, target: string): Promise<void> {
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
  try {
    const script = 'mkdir -p -- "$1" && exec tar -xf - --no-same-owner -C "$1"'
    await runInside(cli, name, ['sh', '-c', script, 'sh', target], { input: packing.stdout })
  } finally {
    packing.kill()
  }
  await packed
  tell(cli, { path: target }, `Copied ${local} to ${target}.`)
}

export async function get(cli: SandboxCli, name: string, path: string, local: string | undefined): Promise<void> {
  try {
    await getFile(cli, name, path, local)
  } catch (error) {
    if (codeOf(error) !== 'EISDIR') throw error
    if (local === pipe) throw new Misuse(`${path} is a directory, which cannot be printed`)
    await getDirectory(cli, name, path, placeIn(local, path))
  }
}

export async function getFile(cli: SandboxCli, name: string, path: string, local: string | undefined): Promise<void> {
  const query = new URLSearchParams({ path, workingDir: sandboxHome })
  const answer = await openStream(cli.session(), { method: 'GET', path: `${sandboxPath(name)}/fs/read?${query}` })
  if (local === pipe) return pipeline(answer, cli.streams.output, { end: false })
  const target = intoDirectory(placeIn(local, path), path)
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

function intoDirectory(target: string, source: string): string {
  const isDirectory = statSync(target, { throwIfNoEntry: false })?.isDirectory()
  return isDirectory ? join(target, posix.basename(source)) : target
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
