// A server is handed sockets of the host's network for its clients. A program that took the server over could disconnect one
// and connect it elsewhere. So the users of clusters may not open connections from the network of the host at all.
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

const loaded = new Map<string, Promise<void>>()

/** Loads the rules, once per process. Without nftables, the namespaces have to suffice. */
export function ensureFirewall(home: Home): Promise<void> {
  const known = loaded.get(home.path) ?? load(home)
  loaded.set(home.path, known)
  return known
}

async function load(home: Home): Promise<void> {
  if (!isRoot() || !commandExists('nft')) return
  await run('nft', ['-f', '-'], { input: removal(home) + renderFirewall(home) }).catch(() => undefined)
}

export async function removeFirewall(home: Home): Promise<void> {
  loaded.delete(home.path)
  if (!isRoot() || !commandExists('nft')) return
  await run('nft', ['-f', '-'], { input: removal(home) }).catch(() => undefined)
}
