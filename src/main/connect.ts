import { spawn } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { constants } from 'node:os'
import { join } from 'node:path'
import { CommandError } from '../cli/errors.ts'
import type { PsqlTarget } from '../cli/postgres/connect.ts'
import { openHome } from '../drivers/host/home.ts'
import { isExecutable } from '../drivers/host/process.ts'
import { ensureToolchain } from '../drivers/postgres/toolchain/toolchain.ts'
import { ensureTools } from '../drivers/postgres/toolchain/tools.ts'
import { type Config, inheritedEnvironment, installationsOf } from './config.ts'

type Environment = Record<string, string | undefined>

/** Runs psql at this terminal and returns its exit code. */
export async function connect(config: Config, target: PsqlTarget, args: string[]): Promise<number> {
  const env = inheritedEnvironment()
  const psql = findPsql(config.home, env.PATH ?? '') ?? (await unpackPsql(config))
  const child = spawn(psql, args, { stdio: 'inherit', env: psqlEnvironment(env, target) })
  const release = forwardSignals(child)
  try {
    return await new Promise<number>((resolve, reject) => {
      child.once('error', (cause) => reject(new CommandError(`cannot start ${psql}: ${cause.message}`)))
      child.once('exit', (code, signal) => resolve(code ?? 128 + constants.signals[signal!]))
    })
  } finally {
    release()
  }
}

/** Prefers the psql of the platform, which has the version of its clusters, over those in PATH. */
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
    return [] // there is no home here, or it belongs to another user
  }
}

/** Client programs are unpacked on first use, so psql may be missing until now. */
async function unpackPsql(config: Config): Promise<string> {
  try {
    if (!existsSync(join(config.home, 'toolchain'))) throw new Error(`${config.home} is not the home of a platform`)
    const home = await openHome(config.home, { uidBase: config.uidBase })
    const toolchain = await ensureToolchain('17', home, installationsOf('17', config))
    return join(await ensureTools(toolchain), 'psql')
  } catch (cause) {
    const reason = (cause as Error).message
    throw new CommandError(`psql was not found; install it (apt-get install postgresql-client): ${reason}`, { cause })
  }
}

/**
 * Passes the target in the environment: only the owner of the process can read the password there, and arguments that
 * the user gives after `--` take precedence. Variables that would select another server are removed.
 */
export function psqlEnvironment(inherited: Environment, { host, port, user, password, database }: PsqlTarget) {
  const { PGHOSTADDR, PGSERVICE, PGSERVICEFILE, PGPASSFILE, ...rest } = inherited
  return { ...rest, PGHOST: host, PGPORT: String(port), PGUSER: user, PGPASSWORD: password, PGDATABASE: database }
}

/** Ctrl-C is sent to both processes: psql cancels a query with it, and this one must keep running until psql exits. */
function forwardSignals(child: { kill(signal: NodeJS.Signals): boolean }): () => void {
  const ignore = () => {}
  const forward = (signal: NodeJS.Signals) => child.kill(signal)
  process.on('SIGINT', ignore).on('SIGQUIT', ignore)
  process.on('SIGTERM', forward).on('SIGHUP', forward)
  return () => {
    process.off('SIGINT', ignore).off('SIGQUIT', ignore)
    process.off('SIGTERM', forward).off('SIGHUP', forward)
  }
}
