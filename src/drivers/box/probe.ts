// What this machine lets us do, found out by doing it: kernel settings, security modules and containers all have a say.
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
  way: IsolationMode
  /** Each box has an address, and a way out. */
  network: boolean
  isolation: Isolation
  /** Nothing is kept apart, because of this. */
  why?: string
}

const found = new WeakMap<Home, Promise<BoxAbility>>()

/** Found out once for a home. A failure is not kept: it may have been a full disk. */
export function abilityOf(home: Home, hasLimits: boolean): Promise<BoxAbility> {
  const known = found.get(home)
  if (known) return known
  const finding = findAbility(home, hasLimits).catch((error) => {
    found.delete(home)
    throw error
  })
  found.set(home, finding)
  return finding
}

/** The slot that no box has. */
const probeSlot = 0

export async function findAbility(home: Home, hasLimits: boolean): Promise<BoxAbility> {
  if (!isRoot()) return (await findSingle(home)) ?? nothing('user namespaces are not open to ordinary users here')
  const networkFailure = await tryBox(home, 'full', true)
  if (networkFailure === undefined) return full(true, hasLimits ? undefined : limitGap)
  const failure = await tryBox(home, 'full', false)
  if (failure === undefined) return full(false, `Sandboxes have no network here, nor URLs: ${networkFailure}.`)
  return nothing(failure)
}

const limitGap =
  'There are no control groups that Berth may use, so that a sandbox can take all memory and processors of this machine.'
const singleGap =
  'Berth runs as an ordinary user, so that sandboxes have one user, no package manager, no network and no URL, and the host’s programs as they are.'

function full(network: boolean, gap: string | undefined): BoxAbility {
  return {
    way: 'full',
    network,
    isolation: { kind: 'bubblewrap', network: network ? 'own' : 'none', ...(gap && { gap }) },
  }
}

async function findSingle(home: Home): Promise<BoxAbility | undefined> {
  if ((await tryBox(home, 'single', false)) !== undefined) return undefined
  return { way: 'single', network: false, isolation: { kind: 'bubblewrap', network: 'none', gap: singleGap } }
}

function nothing(why: string): BoxAbility {
  const gap = `Nothing is isolated: sandboxes run as plain processes that see this machine’s files, processes and network, because ${why}.`
  return { way: 'none', network: false, isolation: { kind: 'none', network: 'host', gap }, why }
}

/** Runs `true` in a box that is thrown away. The answer is why it did not work, if so. */
async function tryBox(home: Home, way: IsolationMode, withNetwork: boolean): Promise<string | undefined> {
  const lacking = ['perl', 'bwrap', ...(withNetwork ? ['ip', 'nft'] : [])].find((name) => !commandExists(name))
  if (lacking) return `${lacking} is not installed`
  const id = `probe-${process.pid}`
  const paths = boxPaths(home, id)
  const network = withNetwork ? boxNetwork(home, probeSlot) : undefined
  try {
    const base = await ensureBase(home)
    prepareDisk(
      paths,
      { id, slot: probeSlot, hostname: 'probe', limits: { memoryMb: 0, cpus: 0, pids: 0 } },
      {
        way,
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
