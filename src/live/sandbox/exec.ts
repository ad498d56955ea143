// Commands in sandboxes. Their sessions live in the process that started them: they survive the connections of those who
// follow them, and end with this process.
import { randomInt } from 'node:crypto'
import { constants } from 'node:os'
import { handedOn } from '../../drivers/box/enter/enter.ts'
import { boxSpec } from '../../drivers/box/spec.ts'
import { durationOr, parseDuration } from '../../model/duration.ts'
import { BerthError, notFound, unavailable } from '../../model/errors.ts'
import { type ExecRequest, readExecRequest } from '../../model/sandbox/exec.ts'
import { type Sandbox, type SandboxDetails, sandboxHome } from '../../model/sandbox/sandbox.ts'
import { readSignal } from '../../model/signal.ts'
import type { LiveContext } from '../context.ts'
import { type ExecProcess, loadTerminals, type ProcessEvents, startOnTerminal, startWithPipes } from '../process.ts'
import { ExecSession } from './exec-session.ts'
import { getSandbox, wake } from './sandbox.ts'

export interface ExecSessions {
  start(boxes: LiveContext['boxes'], sandbox: Sandbox, request: ExecRequest): ExecSession
  list(sandboxId: string): ExecSession[]
  find(sandboxId: string, id: string): ExecSession | undefined
  hasEnded(sandboxId: string, id: string): boolean
  /** How often those who follow a silent command are told that it still runs. */
  readonly keepaliveMs: number
  /** Ends every command and takes no more. */
  close(): Promise<void>
}

/** Clients give a connection up that says nothing for 45 s. */
const keepaliveSeconds = 15

const mostSessionsPerSandbox = 200
const mostRemembered = 1000

/** For programs that save their work when their terminal goes, also where everybody is busy; then they are ended. */
const closeGraceMs = 3_000

/** One that was killed has ended by then; only somebody who follows it and does not read can keep its end from being told. */
const killedMs = 2_000

export function createExecSessions(options: { keepaliveMs?: number } = {}): ExecSessions {
  const running = new Map<string, ExecSession>()
  /** The last ones that ended, oldest first: clients ask after them. */
  const endedIds = new Set<string>()
  let closing = false
  const keyOf = (sandboxId: string, id: string) => `${sandboxId} ${id}`
  const list = (sandboxId: string) => [...running.values()].filter(({ facts }) => facts.sandboxId === sandboxId)

  function newId(sandboxId: string): string {
    const id = String(randomInt(10_000, 10_000_000))
    const key = keyOf(sandboxId, id)
    return running.has(key) || endedIds.has(key) ? newId(sandboxId) : id
  }

  function forget(key: string): void {
    running.delete(key)
    endedIds.add(key)
    if (endedIds.size > mostRemembered) endedIds.delete(endedIds.keys().next().value!)
  }

  return {
    keepaliveMs: options.keepaliveMs ?? keepaliveSeconds * 1000,
    list,
    find: (sandboxId, id) => running.get(keyOf(sandboxId, id)),
    hasEnded: (sandboxId, id) => endedIds.has(keyOf(sandboxId, id)),

    start(boxes, sandbox, request) {
      if (closing) throw unavailable('the platform is stopping')
      const id = newId(sandbox.id)
      const key = keyOf(sandbox.id, id)
      const session = startSession(boxes, sandbox, request, { id, onEnd: () => forget(key) })
      running.set(key, session)
      return session
    },

    async close() {
      closing = true
      const all = [...running.values()]
      for (const session of all) session.stop(1, closeGraceMs)
      await Promise.all(all.map((session) => endWithin(session, closeGraceMs + killedMs)))
    },
  }
}

function startSession(
  boxes: LiveContext['boxes'],
  sandbox: Sandbox,
  request: ExecRequest,
  { id, onEnd }: { id: string; onEnd(): void },
): ExecSession {
  const { argv, dir, tty, cols, rows, stdin, maxRunAfterDisconnectMs } = request
  const env = { ...(tty ? { TERM: 'xterm-256color' } : {}), ...sandbox.environment, ...request.env }
  const command = { argv, env, ...(dir === undefined ? {} : { dir }) }
  const spec = boxSpec(sandbox)
  const facts = {
    argv,
    workdir: dir ?? (sandbox.image?.workingDir || sandboxHome),
    tty,
    stdin,
    cols,
    rows,
    maxRunAfterDisconnectMs,
  }
  const start = (events: ProcessEvents): ExecProcess => {
    const process = tty
      ? startOnTerminal(boxes.entry(spec, command), { cols, rows }, events)
      : startWithPipes(boxes.spawnInBox(spec, command), events)
    return { ...process, signal: (signal) => process.signal(handedOn(signal)) }
  }
  const session = new ExecSession({ id, sandboxId: sandbox.id, ...facts }, start, onEnd)
  if (!stdin) session.endInput()
  return session
}

/** Everything that can be refused is checked before; the command starts when the function is called. */
export interface PreparedExec {
  sandbox: SandboxDetails
  start(): ExecSession
}

export async function prepareExec(ctx: LiveContext, name: string, search: URLSearchParams): Promise<PreparedExec> {
  const sandbox = await getSandbox(ctx, name, 'write')
  return prepareIn(ctx, sandbox, search)
}

export async function prepareIn(
  ctx: LiveContext,
  sandbox: SandboxDetails,
  search: URLSearchParams,
): Promise<PreparedExec> {
  const request = readExecRequest(search)
  if (ctx.sessions.list(sandbox.id).length >= mostSessionsPerSandbox) {
    throw new BerthError('rate_limited', `a sandbox runs at most ${mostSessionsPerSandbox} commands at once`, {
      retryAfterSeconds: 1,
      limit: { most: mostSessionsPerSandbox, windowSeconds: 0 },
    })
  }
  if (request.tty) await loadTerminals()
  const awake = await wake(ctx, sandbox)
  return { sandbox: awake, start: () => ctx.sessions.start(ctx.boxes, awake, request) }
}

export async function listExecSessions(ctx: LiveContext, name: string): Promise<ExecSession[]> {
  const sandbox = await getSandbox(ctx, name, 'read')
  return ctx.sessions.list(sandbox.id)
}

export interface FoundSession {
  sandbox: SandboxDetails
  session: ExecSession
}

export async function getExecSession(ctx: LiveContext, name: string, id: string): Promise<FoundSession> {
  const sandbox = await getSandbox(ctx, name, 'write')
  return { sandbox, session: findIn(ctx, sandbox, id) }
}

export function findIn(ctx: LiveContext, sandbox: Sandbox, id: string): ExecSession {
  const session = ctx.sessions.find(sandbox.id, id)
  if (!session) throw notFound(`session not found: ${id}`)
  return session
}

/** As above, but one that has just ended is not unknown. */
export async function getSessionToKill(ctx: LiveContext, name: string, id: string): Promise<ExecSession> {
  const sandbox = await getSandbox(ctx, name, 'write')
  if (ctx.sessions.hasEnded(sandbox.id, id)) throw new BerthError('gone', `session has exited: ${id}`)
  return findIn(ctx, sandbox, id)
}

export type KillEvent =
  | { type: 'signal'; message: string; signal: string; pid?: number }
  | { type: 'timeout' | 'exited' | 'killed'; message: string }
  | { type: 'complete'; exit_code?: number }

const killTimeoutMs = 10_000

export interface KillOrder {
  signal: number
  /** After which it is ended with SIGKILL; 0 sends the signal and waits for nothing. */
  timeoutMs: number
}

export function readKillOrder(search: URLSearchParams): KillOrder {
  const timeout = search.get('timeout') ?? undefined
  const signalOnly = timeout !== undefined && parseDuration(timeout) === 0
  return {
    signal: readSignal(search.get('signal') || 'TERM'),
    timeoutMs: signalOnly ? 0 : durationOr(timeout, killTimeoutMs),
  }
}

/** Goes on when nobody listens any more. */
export async function killSession(
  session: ExecSession,
  { signal, timeoutMs }: KillOrder,
  tell: (event: KillEvent) => void,
): Promise<void> {
  const name = signalName(signal)
  const { pid } = session
  tell({ type: 'signal', message: `sent ${name} to session ${session.id}`, signal: name, ...(pid && { pid }) })
  if (timeoutMs === 0) {
    session.signal(signal)
    return tell({ type: 'complete', ...(session.exitCode === undefined ? {} : { exit_code: session.exitCode }) })
  }
  session.stop(signal, timeoutMs)
  if ((await endWithin(session, timeoutMs)) === undefined) {
    tell({ type: 'timeout', message: `it did not end within ${timeoutMs / 1000} s; sent SIGKILL` })
    await endWithin(session, killedMs)
    tell({ type: 'killed', message: 'it was killed' })
  } else tell({ type: 'exited', message: `it ended with code ${session.exitCode}` })
  tell({ type: 'complete', exit_code: session.exitCode ?? 137 })
}

function signalName(signal: number): string {
  return Object.entries(constants.signals).find(([, number]) => number === signal)?.[0] ?? `signal ${signal}`
}

async function endWithin(session: ExecSession, ms: number): Promise<number | undefined> {
  const { promise, resolve } = Promise.withResolvers<undefined>()
  const timer = setTimeout(() => resolve(undefined), ms)
  const code = await Promise.race([session.ended, promise])
  clearTimeout(timer)
  return code
}
