import { execFile, execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'

export interface Load {
  method: 'GET' | 'POST'
  token: string
  /** The paths to request in turn. */
  paths: string[]
  /** `{n}` is replaced by a unique text in each request. */
  body?: string
}

export interface LoadResult {
  requests: number
  seconds: number
  failed: number
}

/** More than the ten connections of a database pool, so that the server is always busy. */
export const connections = 16

const client = new URL('client.ts', import.meta.url).pathname
const script = new URL('load.lua', import.meta.url).pathname
const run = promisify(execFile)

/** Throws if any request fails. */
export async function applyLoad(url: string, load: Load, seconds: number): Promise<LoadResult> {
  const directory = mkdtempSync(join(tmpdir(), 'berth-load-'))
  try {
    const plan = join(directory, 'plan')
    writeFileSync(plan, planText(load))
    const [program, ...args] = command(url, plan, seconds)
    const { stdout } = await run(program!, args, { timeout: (seconds + 20) * 1000 })
    const result: LoadResult = JSON.parse(stdout.trim().split('\n').at(-1)!)
    if (result.failed === 0) return result
    throw new Error(`${result.failed} of ${result.requests} requests to ${url}${load.paths[0]} failed`)
  } finally {
    rmSync(directory, { recursive: true, force: true })
  }
}

export function loadGenerator(): 'wrk' | 'own client' {
  try {
    execFileSync('sh', ['-c', 'command -v wrk'], { stdio: 'ignore' })
    return 'wrk'
  } catch {
    return 'own client'
  }
}

function command(url: string, plan: string, seconds: number): string[] {
  if (loadGenerator() === 'own client') return [process.execPath, client, url, plan, String(seconds)]
  return ['wrk', '-t', '1', '-c', String(connections), '-d', `${seconds}s`, '-s', script, url, '--', plan]
}

let plans = 0

/** The format is read by load.lua and client.ts. */
function planText({ method, token, paths, body = '' }: Load): string {
  plans += 1
  const prefix = `${process.pid}-${plans}-`
  return `${[method, `Bearer ${token}`, prefix, body, ...paths].join('\n')}\n`
}
