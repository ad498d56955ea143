// The sessions of all commands in sandboxes and machines, which survive the connections of their clients. Those of WebSockets survive
// this process as well: a process of their own holds each, and the next control plane finds them again.
import { randomInt } from 'node:crypto'
import { type Static, Type } from 'typebox'
import { Value } from 'typebox/value'
import type {
  BoxCommand,
  BoxDriver,
  BoxSession,
  FoundSession,
  SessionEvents,
  SessionStart,
} from '../../drivers/box/driver.ts'
import { unavailable } from '../../model/errors.ts'
import { boxSpec } from '../../model/sandbox/box.ts'
import type { ExecRequest } from '../../model/sandbox/exec.ts'
import { type Sandbox, sandboxHome } from '../../model/sandbox/sandbox.ts'
import { startPiped } from './exec-piped.ts'
import { ExecSession, type SessionFacts } from './exec-session.ts'

/** `held` sessions survive this process; `piped` ones end with it and start a little faster. */
export type SessionKind = 'held' | 'piped'

/** Where a command runs. */
export interface ExecPlace {
  /** The id of the sandbox or machine. */
  id: string
  kind: SessionKind
  environment: Record<string, string>
  workdir: string
  start(command: BoxCommand, held: SessionStart, events: SessionEvents): BoxSession
}

export function sandboxPlace(boxes: BoxDriver, sandbox: Sandbox, kind: SessionKind): ExecPlace {
  const spec = boxSpec(sandbox)
  return {
    id: sandbox.id,
    kind,
    environment: sandbox.environment,
    workdir: sandbox.image?.workingDir || sandboxHome,
    start: (command, held, events) =>
      kind === 'held'
        ? boxes.startSession(spec, command, held, events)
        : startPiped(boxes, boxes.spawnInBox(spec, command), events),
  }
}

export interface ExecSessions {
  start(place: ExecPlace, request: ExecRequest, onEnd?: () => void): ExecSession
  /** Continues a session of an earlier process. Returns false when what it says of itself is not valid. */
  continue(found: FoundSession, onEnd: () => void): boolean
  /** Running sessions. */
  list(boxId: string): ExecSession[]
  /** Also finds a session that ended while its clients could not be connected. */
  find(boxId: string, id: string): ExecSession | undefined
  hasEnded(boxId: string, id: string): boolean
  /** The interval of keepalive messages to clients of a silent command. */
  readonly keepaliveMs: number
  /** Ends every piped command, leaves the held ones, and starts no more. */
  close(): Promise<void>
}

/** Clients give up a connection that is silent for 45 s. */
const defaultKeepaliveMs = 15_000

/** Ended sessions that are remembered, so that clients get "has exited" instead of "not found". */
const maxEnded = 1000

/** The time for which clients can learn how a session ended that they lost by a restart of the control plane. */
const keepEndedMs = 10 * 60_000

/** The time that programs have to save their work when the platform stops, before they are killed. */
const closeGraceMs = 3_000

/** The end of a killed command is only delayed by a client that does not read; it is not waited for longer than this. */
export const killedMs = 2_000

/** The time in which a client that reads receives the last output and the exit code of its command. */
const deliverMs = 2_000

interface Entry {
  session: ExecSession
  kind: SessionKind
}

export function createExecSessions({ keepaliveMs = defaultKeepaliveMs } = {}): ExecSessions {
  const running = new Map<string, Entry>()
  const kept = new Map<string, ExecSession>()
  /** Piped sessions that run, or whose clients have not been sent everything yet. */
  const unsent = new Set<ExecSession>()
  /** Oldest first. */
  const endedKeys = new Set<string>()
  let closing = false
  const keyOf = (boxId: string, id: string) => `${boxId} ${id}`

  function newId(boxId: string): string {
    const id = String(randomInt(10_000, 10_000_000))
    const key = keyOf(boxId, id)
    return running.has(key) || endedKeys.has(key) ? newId(boxId) : id
  }

  function markEnded(key: string): void {
    running.delete(key)
    endedKeys.add(key)
    if (endedKeys.size > maxEnded) endedKeys.delete(endedKeys.keys().next().value!)
  }

  function keep(key: string, session: ExecSession): void {
    kept.set(key, session)
    const forget = () => {
      kept.delete(key)
      session.release()
    }
    setTimeout(forget, keepEndedMs).unref()
  }

  return {
    keepaliveMs,
    list: (boxId) => [...running.values()].map(({ session }) => session).filter(({ facts }) => facts.boxId === boxId),
    find: (boxId, id) => running.get(keyOf(boxId, id))?.session ?? kept.get(keyOf(boxId, id)),
    hasEnded: (boxId, id) => endedKeys.has(keyOf(boxId, id)),

    start(place, request, onEnd) {
      if (closing) throw unavailable('the platform is stopping')
      const { kind } = place
      const id = newId(place.id)
      const key = keyOf(place.id, id)
      const end = () => {
        markEnded(key)
        onEnd?.()
      }
      const session = startSession(place, request, id, end)
      void session.ended.then(() => session.release())
      running.set(key, { session, kind })
      if (kind === 'piped') {
        unsent.add(session)
        void session.ended.then(() => session.delivered).then(() => unsent.delete(session))
      }
      return session
    },

    continue(found, onEnd) {
      const facts = readFacts(found)
      if (!facts) return false
      const key = keyOf(found.boxId, found.id)
      const end = () => {
        markEnded(key)
        onEnd()
      }
      const session = new ExecSession(facts, { start: (events) => found.follow(events), onEnd: end, past: found })
      void session.ended.then(() => (session.hasBeenRead ? session.release() : keep(key, session)))
      running.set(key, { session, kind: 'held' })
      return true
    },

    async close() {
      closing = true
      for (const session of kept.values()) session.leave()
      const ending: ExecSession[] = []
      for (const { session, kind } of running.values()) {
        if (kind === 'held') session.leave()
        else ending.push(session)
      }
      for (const session of ending) session.stop(1, closeGraceMs)
      await Promise.all(ending.map((session) => session.endWithin(closeGraceMs + killedMs)))
      await Promise.all([...unsent].map((session) => session.deliverWithin(deliverMs)))
    },
  }
}

function startSession(place: ExecPlace, request: ExecRequest, id: string, onEnd: () => void): ExecSession {
  const { argv, dir, tty, cols, rows, stdin, maxRunAfterDisconnectMs } = request
  const env = { ...(tty ? { TERM: 'xterm-256color' } : {}), ...place.environment, ...request.env }
  const command = { argv, env, ...(dir === undefined ? {} : { dir }) }
  const workdir = dir ?? place.workdir
  const facts = { id, boxId: place.id, argv, workdir, tty, stdin, cols, rows, createdAt: new Date() }
  const held = { id, isTerminal: tty, cols, rows, maxRunAfterDisconnectMs, facts: renderFacts(facts) }
  const session = new ExecSession(facts, { start: (events) => place.start(command, held, events), onEnd })
  if (!stdin) session.endInput()
  return session
}

/** What the process that holds a session keeps for the next control plane. */
const HeldFacts = Type.Object({
  argv: Type.Array(Type.String(), { minItems: 1 }),
  workdir: Type.String(),
  tty: Type.Boolean(),
  stdin: Type.Boolean(),
  createdMs: Type.Integer({ minimum: 0, maximum: 8.64e15 }),
})

function renderFacts({ argv, workdir, tty, stdin, createdAt }: SessionFacts): string {
  return JSON.stringify({ argv, workdir, tty, stdin, createdMs: createdAt.getTime() } satisfies Static<
    typeof HeldFacts
  >)
}

function readFacts({ boxId, id, facts: text, cols, rows }: FoundSession): SessionFacts | undefined {
  const facts = parse(text)
  if (!Value.Check(HeldFacts, facts)) return undefined
  const { argv, workdir, tty, stdin, createdMs } = facts
  const createdAt = new Date(createdMs)
  return { id, boxId, argv: argv as SessionFacts['argv'], workdir, tty, stdin, cols, rows, createdAt }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
