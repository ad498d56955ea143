import { spawn } from 'node:child_process'
import type { Berth } from './berth.ts'

const launcher = new URL('../../berth', import.meta.url).pathname

export interface Result {
  code: number | null
  out: string
  err: string
}

/** Runs the CLI against a platform. */
export async function runCli(
  { environment }: Pick<Berth, 'environment'>,
  args: string[],
  { input = '', cwd = '/' }: { input?: string; cwd?: string } = {},
): Promise<Result> {
  const child = spawn(launcher, args, { env: environment, cwd, stdio: ['pipe', 'pipe', 'pipe'] })
  const ended = new Promise<number | null>((resolve, reject) => child.once('close', resolve).once('error', reject))
  child.stdin.on('error', () => {}) // the process may exit without reading its input
  child.stdin.end(input)
  const [out, err] = await Promise.all(
    [child.stdout, child.stderr].map(async (stream) => String(Buffer.concat(await stream.toArray()))),
  )
  return { code: await ended, out: out!, err: err! }
}
