// The sessions of all commands in sandboxes. They live in the process that started them: they survive the connections of
// their clients, and end with this process.
import { randomInt } from 'node:crypto'
import type { BoxDriver } from '../../drivers/box/driver.ts'
import { unavailable } from '../../model/errors.ts'
import { boxSpec } from '../../model/sandbox/box.ts'
import type { ExecRequest } from '../../model/sandbox/exec.ts'
import { type Sandbox, sandboxHome } from '../../model/sandbox/sandbox.ts'
import { type ProcessEvents, startWithPipes } from '../process.ts'
import { startOnTerminal } from '../terminal.ts'
import { ExecSession } from './exec-session.ts'

export interface ExecSessions {
  start(boxes: BoxDriver, sandbox: Sandbox, request: ExecRequest, onEnd?: () => void): ExecSession
  list(sandboxId: string): ExecSession[]
  find(sandboxId: string, id: string): ExecSession | undefined
  hasEnded(sandboxId: string, id: string): boolean
  /** The interval of keepalive messages to clients of a silent command. */
  readonly keepaliveMs: number
  /** Ends every command and starts no more. */
  close(): Promise<void>
}

/** Clients give up a connection that is silent for 45 s. */
const defaultKeepaliveMs = 15_000

/** Ended sessions that are remembered, so that clients get "has exited" instead of "not found". */
const maxEnded = 1000

/** The time that programs have to save their work when the platform stops, before they are killed. */
const closeGraceMs = 3_000

/** The end of a killed command is only delayed by a client that does not read; it is not waited for longer than this. */
export const killedMs = 2_000

export function createExecSessions({ keepaliveMs = defaultKeepaliveMs } = {}): ExecSessions {
  const running = new Map<string, ExecSession>()
  /** Oldest first. */
  const endedKeys = new Set<string>()
  let closing = false
  const keyOf = (sandboxId: string, id: string) => `${sandboxId} ${id}`

  function newId(sandboxId: string): string {
    const id = String(randomInt(10_000, 10_000_000))
    const key = keyOf(sandboxId, id)
    return running.has(key) || endedKeys.has(key) ? newId(sandboxId) : id
  }

  function markEnded(key: string): void {
    running.delete(key)
    endedKeys.add(key)
    if (endedKeys.size > maxEnded) endedKeys.delete(endedKeys.keys().next().value!)
  }

  return {
    keepaliveMs,
    list: (sandboxId) => [...running.values()].filter(({ facts }) => facts.sandboxId === sandboxId),
    find: (sandboxId, id) => running.get(keyOf(sandboxId, id)),
    hasEnded: (sandboxId, id) => endedKeys.has(keyOf(sandboxId, id)),

    start(boxes, sandbox, request, onEnd) {
      if (closing) throw unavailable('the platform is stopping')
      const id = newId(sandbox.id)
      const key = keyOf(sandbox.id, id)
      const end = () => {
        markEnded(key)
        onEnd?.()
      }
      const session = startSession(boxes, sandbox, request, { id, onEnd: end })
      running.set(key, session)
      return session
    },

    async close() {
      closing = true
      const all = [...running.values()]
      for (const session of all) session.stop(1, closeGraceMs)
      await Promise.all(all.map((session) => session.endWithin(closeGraceMs + killedMs)))
    },
  }
}

function startSession(
  boxes: BoxDriver,
  sandbox: Sandbox,
  request: ExecRequest,
  { id, onEnd }: { id: string; onEnd(): void },
): ExecSession {
  const { argv, dir, tty, cols, rows, stdin, maxRunAfterDisconnectMs } = request
  const env = { ...(tty ? { TERM: 'xterm-256color' } : {}), ...sandbox.environment, ...request.env }
  const command = { argv, env, ...(dir === undefined ? {} : { dir }) }
  const spec = boxSpec(sandbox)
  const workdir = dir ?? (sandbox.image?.workingDir || sandboxHome)
  const facts = { id, sandboxId: sandbox.id, argv, workdir, tty, stdin, cols, rows, maxRunAfterDisconnectMs }
  const start = (events: ProcessEvents) =>
    tty
      ? startOnTerminal(boxes.entry(spec, command), { cols, rows }, events)
      : startWithPipes(boxes.spawnInBox(spec, command), events)
  const session = new ExecSession(facts, { control: boxes, start, onEnd })
  if (!stdin) session.endInput()
  return session
}
