// Finds the isolation mode that the host supports by starting a box: kernel settings, security modules and container
// runtimes can each forbid parts of it, and none of them can be queried reliably.
import { rmSync } from 'node:fs'
import type { Home } from '../host/home.ts'
import { commandExists, findCommand, isRoot, run } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import { ensureBase } from './base.ts'
import { ensureFilter, openForRemoval, prepareDisk } from './disk.ts'
import type { Isolation } from './driver.ts'
import type { IsolationMode } from './enter/enter.ts'
import { boxNetwork, ensureRules, removeLink } from './network.ts'
import { boxPaths } from './paths.ts'

export interface BoxAbility {
  mode: IsolationMode
  /** True when each box has an address and a route to the internet. */
  network: boolean
  isolation: Isolation
  /** The reason why nothing is isolated. */
  why?: string
}

const abilities = new WeakMap<Home, Promise<BoxAbility>>()

/** Probes once per home. A failure of the probe itself, such as a full disk, is not cached. */
export function probeAbility(home: Home, hasLimits: boolean): Promise<BoxAbility> {
  const known = abilities.get(home)
  if (known) return known
  const finding = findAbility(home, hasLimits).catch((error) => {
    abilities.delete(home)
    throw error
  })
  abilities.set(home, finding)
  return finding
}

/** Slots of real boxes start at 1. */
const probeSlot = 0

async function findAbility(home: Home, hasLimits: boolean): Promise<BoxAbility> {
  if (!isRoot()) return (await findSingle(home)) ?? nothing('user namespaces are not open to ordinary users here')
  const networkFailure = await tryBox(home, 'full', true)
  if (networkFailure === undefined) return full(true, hasLimits ? undefined : limitGap)
  const failure = await tryBox(home, 'full', false)
  if (failure === undefined) return full(false, `Sandboxes have no network here, nor URLs: ${networkFailure}.`)
  return nothing(failure)
}

const limitGap =
  'There are no control groups that Berth may use, so a sandbox can use all memory and processors of this machine.'
const singleGap =
  'Berth does not run as root, so sandboxes have a single user, no package manager, no network and no URL, and see the programs of the host.'

function full(network: boolean, gap: string | undefined): BoxAbility {
  return {
    mode: 'full',
    network,
    isolation: { kind: 'bubblewrap', network: network ? 'own' : 'none', ...(gap && { gap }) },
  }
}

async function findSingle(home: Home): Promise<BoxAbility | undefined> {
  if ((await tryBox(home, 'single', false)) !== undefined) return undefined
  return { mode: 'single', network: false, isolation: { kind: 'bubblewrap', network: 'none', gap: singleGap } }
}

function nothing(why: string): BoxAbility {
  const gap = `Nothing is isolated: sandboxes run as plain processes that see this machine’s files, processes and network, because ${why}.`
  return { mode: 'none', network: false, isolation: { kind: 'none', network: 'host', gap }, why }
}

/** Runs `true` in a temporary box. Returns the reason when that fails. */
async function tryBox(home: Home, mode: IsolationMode, withNetwork: boolean): Promise<string | undefined> {
  const missing = ['perl', 'bwrap', ...(withNetwork ? ['ip', 'nft'] : [])].find((name) => !commandExists(name))
  if (missing) return `${missing} is not installed`
  const id = `probe-${process.pid}`
  const paths = boxPaths(home, id)
  const network = withNetwork ? boxNetwork(home, probeSlot) : undefined
  try {
    const base = await ensureBase(home)
    prepareDisk(
      paths,
      { id, slot: probeSlot, hostname: 'probe', limits: { memoryMb: 0, cpus: 0, pids: 0 } },
      {
        mode,
        base,
        filter: ensureFilter(home),
        uid: isRoot() ? home.uidStart : undefined,
        network: network && { ...network, rules: ensureRules(home) },
        limits: {},
        command: ['true'],
      },
    )
    await run(findCommand('perl')!, [driverProgram('box/start.pl'), paths.config], { timeoutSeconds: 10 })
    return undefined
  } catch (error) {
    return (error as Error).message.replace(/\.$/, '')
  } finally {
    if (network) await removeLink(network.link)
    await openForRemoval(paths)
    rmSync(paths.directory, { recursive: true, force: true })
  }
}
