// A server is handed sockets of the host's network for its clients. A program that took the server over could disconnect one
// and connect it elsewhere. So the users of clusters may not open connections from the network of the host at all.
import { describeError } from '../../model/errors.ts'
import type { Home } from '../host/home.ts'
import { commandExists, isRoot, run } from '../host/process.ts'
import { uidStride } from './users.ts'

function tableOf({ number }: Pick<Home, 'number'>): string {
  return `inet berth-clusters-${number}`
}

// Deleting a missing table is an error, so it is added first.
function removal(home: Home): string {
  return `add table ${tableOf(home)}\ndelete table ${tableOf(home)}\n`
}

export function renderFirewall(home: Pick<Home, 'number' | 'uidStart'>): string {
  const users = `${home.uidStart + 1}-${home.uidStart + 3 * uidStride}`
  return `table ${tableOf(home)} {
  chain outgoing {
    type filter hook output priority 0
    meta skuid ${users} tcp flags & (syn | ack) == syn reject with tcp reset
    meta skuid ${users} meta l4proto != tcp drop
  }
}
`
}

/** What is known about the rules of a home in this process. */
interface Rules {
  /** Why they are not in force. */
  problem: Promise<string | undefined>
  triedAtMs: number
}

const rulesByHome = new Map<string, Rules>()
const retryMs = 60_000

/**
 * Loads the rules, once per process; again after a failure. A cluster runs without them too, because its namespaces keep
 * its programs from the network in the first place, but its health says so.
 */
export async function ensureFirewall(home: Home, apply = applyRules, now = Date.now()): Promise<string | undefined> {
  const known = rulesByHome.get(home.path)
  if (known) {
    const problem = await known.problem
    const isTriedAgain = rulesByHome.get(home.path) !== known
    if (problem === undefined || isTriedAgain || now - known.triedAtMs < retryMs) return problem
  }
  const rules = { problem: load(home, apply), triedAtMs: now }
  rulesByHome.set(home.path, rules)
  return rules.problem
}

async function load(home: Home, apply: typeof applyRules): Promise<string | undefined> {
  try {
    await apply(removal(home) + renderFirewall(home))
    return undefined
  } catch (error) {
    return `the firewall rules that keep the programs of clusters from the network of this machine are not in force: ${describeError(error)}`
  }
}

/** A missing program is reported by `berth doctor`. */
async function applyRules(input: string): Promise<void> {
  if (isRoot() && commandExists('nft')) await run('nft', ['-f', '-'], { input })
}

export async function removeFirewall(home: Home): Promise<void> {
  rulesByHome.delete(home.path)
  // The rules of a platform that is removed apply to no program any more.
  await applyRules(removal(home)).catch(() => undefined)
}
