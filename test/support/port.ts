import { randomInt } from 'node:crypto'
import { createServer } from 'node:net'

// Files that run at once have ports of their own, below those that the kernel hands out by itself: what is free now is
// still free when somebody comes to listen there.
const worker = (Number(process.env.VITEST_POOL_ID ?? 1) - 1) % 4

/** What a platform may give to its clusters. */
export const platformPorts = { first: 15_000 + worker * 1250, last: 15_000 + worker * 1250 + 1249 }

const own = { first: 20_000 + worker * 3000, count: 3000 }
let next = randomInt(own.count)

/** Different ones with each call. */
export async function freePorts(count: number): Promise<number[]> {
  const found: number[] = []
  while (found.length < count) {
    const port = own.first + (next++ % own.count)
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
