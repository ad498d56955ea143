import { constants } from 'node:os'
import { durationOr, parseDuration } from '../../model/duration.ts'
import { readSignal } from '../../model/signal.ts'
import type { ExecSession } from './exec-session.ts'
import { killedMs } from './exec-sessions.ts'

export type KillEvent =
  | { type: 'signal'; message: string; signal: string; pid?: number }
  | { type: 'timeout' | 'exited' | 'killed'; message: string }
  | { type: 'complete'; exit_code?: number }

const defaultTimeoutMs = 10_000

export interface KillRequest {
  signal: number
  /** The time before SIGKILL is sent; 0 sends the signal and waits for nothing. */
  timeoutMs: number
}

/** As sent by clients: in the query, in the body, or both, in which case the body counts. */
export interface KillOptions {
  /** A name or a number. */
  signal?: string | number
  /** A duration, or a number of seconds. */
  timeout?: string | number
}

export function readKillRequest(query: KillOptions, body: KillOptions): KillRequest {
  const given = body.timeout ?? query.timeout
  const timeout = typeof given === 'number' ? `${given}s` : given
  const signalOnly = timeout !== undefined && parseDuration(timeout) === 0
  return {
    signal: readSignal(body.signal || query.signal || 'TERM'),
    timeoutMs: signalOnly ? 0 : durationOr(timeout, defaultTimeoutMs),
  }
}

/** Continues when the client that gets the events has disconnected. */
export async function killSession(
  session: ExecSession,
  { signal, timeoutMs }: KillRequest,
  onEvent: (event: KillEvent) => void,
): Promise<void> {
  const name = signalName(signal)
  const { pid } = session
  onEvent({ type: 'signal', message: `sent ${name} to session ${session.id}`, signal: name, ...(pid && { pid }) })
  if (timeoutMs === 0) {
    session.signal(signal)
    return onEvent({ type: 'complete', ...(session.exitCode === undefined ? {} : { exit_code: session.exitCode }) })
  }
  session.signal(signal)
  if ((await session.endWithin(timeoutMs)) === undefined) {
    session.signal(9)
    onEvent({ type: 'timeout', message: `it did not end within ${timeoutMs / 1000} s; sent SIGKILL` })
    await session.endWithin(killedMs)
    onEvent({ type: 'killed', message: 'it was killed' })
  } else onEvent({ type: 'exited', message: `it ended with code ${session.exitCode}` })
  onEvent({ type: 'complete', exit_code: session.exitCode ?? 137 })
}

function signalName(signal: number): string {
  return Object.entries(constants.signals).find(([, number]) => number === signal)?.[0] ?? `signal ${signal}`
}
