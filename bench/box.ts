// Sandboxes over the public API, and the files and database rows that benchmarks read directly.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import type pg from 'pg'
import { WebSocket } from 'ws'
import { until } from './child.ts'
import { connect, openPlatform, type Platform } from './platform.ts'
import type { Scope } from './scope.ts'

export interface BoxHost {
  scope: Scope
  platform: Platform
  home: string
  /** The URL of the sandbox API. */
  url: string
  /** A connection to the state database. */
  state: pg.Client
}

export interface ServiceView {
  name: string
  state: { status: string; pid?: number; restart_count?: number }
}

export async function openBoxHost(scope: Scope, parent?: string): Promise<BoxHost> {
  const platform = await openPlatform(scope, parent)
  await platform.start()
  const home = platform.environment.BERTH_HOME!
  const file = `${home}/run/addresses.json`
  // The file is written once all listeners answer, a moment after the first one.
  await until(() => existsSync(file), 'the platform to say where it answers')
  const url = `${JSON.parse(readFileSync(file, 'utf8')).sandbox}/v1/sandboxes`
  return { scope, platform, home, url, state: await connect(scope, platform) }
}

export async function ask(host: BoxHost, method: string, path: string, body?: object): Promise<Response> {
  const response = await fetch(`${host.url}${path}`, {
    method,
    headers: { authorization: `Bearer ${host.platform.token}` },
    ...(body && { body: JSON.stringify(body) }),
    signal: AbortSignal.timeout(120_000),
  })
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`)
  return response
}

export async function askText(host: BoxHost, method: string, path: string, body?: object): Promise<string> {
  return (await ask(host, method, path, body)).text()
}

export async function makeSandbox(host: BoxHost, name: string): Promise<string> {
  return JSON.parse(await askText(host, 'POST', '', { name })).id
}

/** Waits for the removal of the files too, because it would slow down the next measurement. */
export async function removeSandbox(host: BoxHost, name: string): Promise<void> {
  await askText(host, 'DELETE', `/${name}`)
  const isGone = async () => {
    const text = `select count(*)::int as left from sandbox where name = $1 and state <> 'deleted'`
    if ((await host.state.query(text, [name])).rows[0].left > 0) return false
    return !existsSync(`${host.home}/trash`) || readdirSync(`${host.home}/trash`).length === 0
  }
  await until(isGone, `sandbox ${name} to be gone`, 60)
}

/** Runs a command over a WebSocket and returns when the connection is closed. */
export function execute({ url, platform }: BoxHost, name: string, ...argv: string[]): Promise<void> {
  const query = argv.map((word) => `cmd=${encodeURIComponent(word)}`).join('&')
  const socket = new WebSocket(`${url.replace(/^http/, 'ws')}/${name}/exec?${query}`, {
    headers: { authorization: `Bearer ${platform.token}` },
    perMessageDeflate: false,
  })
  let said = ''
  let code: number | undefined
  return new Promise((resolve, reject) => {
    socket.on('message', (data: Buffer, isBinary) => {
      // The first byte is the number of the stream; the last frame contains the exit code.
      if (isBinary && data[0] === 3) code = data[1]
      else if (isBinary) said += data.subarray(1)
    })
    socket.on('error', reject)
    socket.on('close', () => (code === 0 ? resolve() : reject(new Error(`${argv[0]} ended with ${code}: ${said}`))))
  })
}

/** Defines a service and returns when the API reports that its program has started. */
export async function putService(host: BoxHost, sandbox: string, name: string, argv: string[]): Promise<void> {
  const [cmd, ...args] = argv
  const answer = await ask(host, 'PUT', `/${sandbox}/services/${name}?duration=1s`, { cmd, args })
  let text = ''
  for await (const part of answer.body!.pipeThrough(new TextDecoderStream())) {
    text += part
    if (text.includes('"type":"started"')) return // leaving the loop also cancels the stream
    if (text.includes('"type":"error"')) break
  }
  throw new Error(`service ${name} was not started: ${text}`)
}

export async function getService(host: BoxHost, sandbox: string, name: string): Promise<ServiceView> {
  return JSON.parse(await askText(host, 'GET', `/${sandbox}/services/${name}`))
}

export async function millisOf(work: () => Promise<unknown>): Promise<number> {
  const started = performance.now()
  await work()
  return performance.now() - started
}
