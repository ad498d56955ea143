import { randomInt } from 'node:crypto'
import { createServer } from 'node:net'

// Test files that run concurrently have separate port ranges, below the kernel's ephemeral ports, so a free port stays
// free until the test listens on it.
const worker = (Number(process.env.VITEST_POOL_ID ?? 1) - 1) % 4

/** The range that a platform may assign to its clusters. */
export const platformPorts = { first: 15_000 + worker * 1250, last: 15_000 + worker * 1250 + 1249 }

const range = { first: 20_000 + worker * 3000, count: 3000 }
let next = randomInt(range.count)

/** Finds free ports; each call returns different ones. */
export async function freePorts(count: number): Promise<number[]> {
  const found: number[] = []
  while (found.length < count) {
    const port = range.first + (next++ % range.count)
    if (await isFree(port)) found.push(port)
  }
  return found
}

export async function freePort(): Promise<number> {
  return (await freePorts(1))[0]!
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer()
    server.once('error', () => resolve(false))
    server.listen({ port, host: '127.0.0.1', exclusive: true }, () => server.close(() => resolve(true)))
  })
}
