import { spawn } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { constants } from 'node:os'
import { join } from 'node:path'
import { Failure } from '../cli/failure.ts'
import type { PsqlTarget } from '../cli/postgres/connect.ts'
import { openHome } from '../drivers/host/home.ts'
import { isExecutable } from '../drivers/host/process.ts'
import { ensureToolchain } from '../drivers/postgres/toolchain/toolchain.ts'
import { ensureTools } from '../drivers/postgres/toolchain/tools.ts'
import { type Config, inheritedEnvironment } from './config.ts'

type Environment = Record<string, string | undefined>

/** Runs psql at this terminal and returns its exit code. */
export async function connect(config: Config, target: PsqlTarget, args: string[]): Promise<number> {
  const env = inheritedEnvironment()
  const psql = findPsql(config.home, env.PATH ?? '') ?? (await unpackPsql(config))
  const child = spawn(psql, args, { stdio: 'inherit', env: psqlEnvironment(env, target) })
  const release = leaveSignalsTo(child)
  try {
    return await new Promise<number>((resolve, reject) => {
      child.once('error', (cause) => reject(new Failure(`${psql} cannot be started: ${cause.message}`)))
      child.once('exit', (code, signal) => resolve(code ?? 128 + constants.signals[signal!]))
    })
  } finally {
    release()
  }
}

/** The platform's own fits its clusters; any other will do. */
export function findPsql(home: string, searchPath: string): string | undefined {
  const own = listToolDirectories(home)
  const others = searchPath.split(':').filter((directory) => directory !== '')
  return [...own, ...others].map((directory) => join(directory, 'psql')).find(isExecutable)
}

function listToolDirectories(home: string): string[] {
  try {
    const entries = readdirSync(join(home, 'toolchain')).filter((entry) => entry.startsWith('tools-'))
    return entries
      .sort()
      .reverse()
      .map((entry) => join(home, 'toolchain', entry, 'bin'))
  } catch {
    return [] // no home here, or somebody else's
  }
}

/** The client programs are unpacked when something needs them first, which may be now. */
async function unpackPsql(config: Config): Promise<string> {
  try {
    if (!existsSync(join(config.home, 'toolchain'))) throw new Error(`${config.home} is not the home of a platform`)
    const home = await openHome(config.home, { uidBase: config.uidBase })
    const toolchain = await ensureToolchain('17', home, { configuredBin: config.pgBins[17] })
    return join(await ensureTools(toolchain), 'psql')
  } catch (cause) {
    const reason = (cause as Error).message
    throw new Failure(`psql was not found; install it (apt-get install postgresql-client): ${reason}`, { cause })
  }
}

/**
 * In the environment, where only the owner of the process sees the password, and where what the person writes after
 * `--` wins over it. Variables that would lead elsewhere go.
 */
export function psqlEnvironment(outside: Environment, { host, port, user, password, database }: PsqlTarget) {
  const { PGHOSTADDR, PGSERVICE, PGSERVICEFILE, PGPASSFILE, ...rest } = outside
  return { ...rest, PGHOST: host, PGPORT: String(port), PGUSER: user, PGPASSWORD: password, PGDATABASE: database }
}

/** Ctrl-C reaches both; psql ends a query with it, and this process must live until psql ends. */
function leaveSignalsTo(child: { kill(signal: NodeJS.Signals): boolean }): () => void {
  const ignore = () => {}
  const forward = (signal: NodeJS.Signals) => child.kill(signal)
  process.on('SIGINT', ignore).on('SIGQUIT', ignore)
  process.on('SIGTERM', forward).on('SIGHUP', forward)
  return () => {
    process.off('SIGINT', ignore).off('SIGQUIT', ignore)
    process.off('SIGTERM', forward).off('SIGHUP', forward)
  }
}
