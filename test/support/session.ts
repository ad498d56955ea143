// A command in a box that outlives its starter, as the platform uses it.
import type { BoxCommand, BoxDriver, BoxSession, FoundSession, SessionStart } from '../../src/drivers/box/driver.ts'
import { startSession } from '../../src/drivers/box/enter/session.ts'
import { ensureSocket, findSessions as findHeldSessions } from '../../src/drivers/box/enter/session-socket.ts'
import { enterSpares } from '../../src/drivers/box/enter/spare.ts'
import { type OutputStream, stderrByte, stdoutByte } from '../../src/model/output-stream.ts'
import type { BoxSpec } from '../../src/model/sandbox/box.ts'
import { until } from './until.ts'

let lastId = 10_000

export class SessionClient {
  readonly id: string
  session!: BoxSession
  out = ''
  err = ''
  exitCode: number | undefined

  constructor(id: string) {
    this.id = id
  }

  static start(
    boxes: BoxDriver,
    spec: BoxSpec,
    argv: BoxCommand['argv'],
    { env, dir, ...start }: Partial<SessionStart> & Omit<BoxCommand, 'argv'> = {},
  ): SessionClient {
    lastId += 1
    const client = new SessionClient(String(lastId))
    const command = { argv, ...(env && { env }), ...(dir && { dir }) }
    const defaults = { isTerminal: false, cols: 80, rows: 24, maxRunAfterDisconnectMs: null, facts: `of ${lastId}` }
    client.session = boxes.startSession(spec, command, { ...defaults, ...start, id: client.id }, client.events)
    return client
  }

  static sh(boxes: BoxDriver, spec: BoxSpec, script: string, start: Partial<SessionStart> = {}): SessionClient {
    return SessionClient.start(boxes, spec, ['sh', '-c', script], start)
  }

  /** Follows a session that was found again. */
  static follow(found: FoundSession): SessionClient {
    const client = new SessionClient(found.id)
    for (const { stream, data } of found.history) client.events.onOutput(stream, data)
    client.session = found.follow(client.events)
    return client
  }

  get events() {
    return {
      onOutput: (stream: OutputStream, data: Buffer) => {
        if (stream === stdoutByte) this.out += data
        if (stream === stderrByte) this.err += data
      },
      onDrain: () => undefined,
      onEnd: (code: number) => {
        this.exitCode = code
      },
    }
  }

  write(text: string): void {
    this.session.write(Buffer.from(text))
  }

  async said(text: string): Promise<void> {
    await until(() => this.out.includes(text))
  }

  async end(): Promise<number> {
    await until(() => this.exitCode !== undefined)
    this.session.release()
    return this.exitCode!
  }
}

/** Finds the sessions of one box as a control plane does that has just started. */
export async function findSessions(boxes: BoxDriver, spec: BoxSpec): Promise<FoundSession[]> {
  const found: FoundSession[] = []
  await boxes.findSessions((session) => found.push(session))
  return found.filter(({ boxId }) => boxId === spec.id)
}

/** Runs sessions on the host instead of in a box. `held` has those that have not ended. */
export function hostSessions(
  directory: string,
  held = new Set<BoxSession>(),
): Pick<BoxDriver, 'startSession' | 'findSessions'> {
  const spares = enterSpares()
  return {
    startSession(spec, command, start, events) {
      const request = {
        ...{ machine: [process.arch], way: ['none'], service: [''], uid: [String(process.getuid!())], cgroup: [] },
        ...{ filter: [''], privileges: ['standard'], dir: [command.dir ?? directory] },
        env: Object.entries({ PATH: process.env.PATH ?? '', ...command.env }).map(
          ([name, value]) => `${name}=${value}`,
        ),
        argv: command.argv,
      }
      const session = startSession(spares, request, ensureSocket({ run: directory }, spec.id, start.id), start)
      held.add(session)
      const onEnd = (code: number) => {
        held.delete(session)
        events.onEnd(code)
      }
      return session.follow({ ...events, onEnd })
    },
    findSessions: (onFound) => findHeldSessions({ run: directory }, onFound),
  }
}
