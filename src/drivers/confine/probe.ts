// Finds out whether this host can confine programs, by trying it: kernel settings, security modules and container
// runtimes can each forbid parts of it, and none of them can be queried reliably.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Machine, seccompFilter } from '../box/seccomp.ts'
import { commandExists, ExitError, isRoot, run } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'

let finding: Promise<string | undefined> | undefined

export async function canConfine(): Promise<boolean> {
  return (await findConfinementProblem()) === undefined
}

/** The reason why this host cannot confine programs; undefined if it can. It is tried once, unless there is no result. */
export function findConfinementProblem(): Promise<string | undefined> {
  finding ??= tryToConfine().catch((error) => {
    finding = undefined
    throw error
  })
  return finding
}

/** What a cluster lacks on such a host. */
export async function findClusterGap(): Promise<string | undefined> {
  const why = await findConfinementProblem()
  if (why === undefined) return undefined
  return `Clusters are not isolated: their servers see the files, processes and network of this machine, because ${why}.`
}

const nobody = '65534'
const listening = `use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die;
  bind($s, pack_sockaddr_un('/tmp/probe')) or die; listen($s, 1) or die "listen: $!\\n"`

async function tryToConfine(): Promise<string | undefined> {
  const missing = ['perl', 'bwrap', 'setpriv'].find((name) => !commandExists(name))
  if (missing) return `${missing} is not installed`
  const directory = mkdtempSync(join(tmpdir(), 'berth-probe-'))
  const filter = `${directory}/filter`
  const user = isRoot() ? ['--user', nobody, nobody] : []
  const options = [process.arch, '--filter', filter, ...user, '--socket', `${directory}/probe`]
  try {
    writeFileSync(filter, seccompFilter(process.arch as Machine, { keepsProjects: true }))
    const program = driverProgram('confine/confine.pl')
    await run('perl', [program, ...options, '--', '/usr/bin/perl', '-e', listening], { timeoutSeconds: 20 })
    return undefined
  } catch (error) {
    // An overloaded host says nothing about what it supports, and a wrong result would restart every cluster.
    if (!(error instanceof ExitError)) throw error
    return error.message.replace(/\.$/, '')
  } finally {
    rmSync(directory, { recursive: true, force: true })
  }
}
