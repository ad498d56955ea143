// One socket on which operations run one after the other, each announced by a text that starts with `control:`.
import type { RawData, WebSocket } from 'ws'
import type { LiveContext } from '../../live/context.ts'
import { findIn, prepareIn } from '../../live/sandbox/exec.ts'
import { ticksNow } from '../../live/sandbox/port.ts'
import { getSandbox } from '../../live/sandbox/sandbox.ts'
import { notFound } from '../../model/errors.ts'
import { readClientMessage, readObject, stdinByte, stdinEndByte } from '../../model/sandbox/exec.ts'
import type { SandboxDetails } from '../../model/sandbox/sandbox.ts'
import { asBerthError } from '../http/problem.ts'
import type { SocketRoute } from '../http/route.ts'
import { fileOperations } from './control-file.ts'
import { socketHeaders } from './exec.ts'
import { bytesOf, type Followed, follow, obey } from './exec-socket.ts'

export interface ControlCall {
  ctx: LiveContext
  sandbox: SandboxDetails
  args: URLSearchParams
  socket: WebSocket
  /** The operation is over; clients take an absent `exitCode` for 0. */
  complete(args: { exitCode: number } & Record<string, unknown>): void
  /** It is over because of this. */
  fail(error: unknown): void
}

/** An operation that runs: what the client sends meanwhile is for it. */
export interface ControlRun {
  message(data: RawData, isBinary: boolean): void
  /** The connection is gone. */
  leave(): void
}

export type ControlOperation = (call: ControlCall) => Promise<ControlRun>

/** What a channel can do, by the name in `op`. */
export const controlOperations: Record<string, ControlOperation> = { exec: runExec, ...fileOperations }

/** Its reader loses what is said at the start of an operation, so it is better off with a socket for each. */
const unfit = /^sprites-go-sdk\//

export const controlSockets: SocketRoute[] = [
  {
    path: '/v1/sandboxes/{name}/control',
    id: 'control',
    tag: 'Exec',
    summary: 'Run operations one after the other on one connection',
    open: async ({ ctx, params, headers, search }) => {
      const sandbox = await getSandbox(ctx, params.name!, 'write')
      if (unfit.test(headers['user-agent'] ?? '')) throw notFound('this client has no use for a control channel')
      return {
        headers: socketHeaders,
        run: (socket) => {
          const channel = new ControlChannel(ctx, sandbox, socket)
          const op = search.get('op')
          if (op) channel.start(op, undefined, search)
        },
      }
    },
  },
]

/** What may wait for an operation that is about to start. */
const mostHeldBytes = 16 * 1024 * 1024

interface Message {
  data: RawData
  isBinary: boolean
}

interface Running {
  id: unknown
  /** Undefined while it starts; what comes meanwhile is held. */
  run?: ControlRun
  held: Message[]
  heldBytes: number
}

class ControlChannel {
  readonly #ctx: LiveContext
  readonly #sandbox: SandboxDetails
  readonly #socket: WebSocket
  #running: Running | undefined
  #hasRun = false

  constructor(ctx: LiveContext, sandbox: SandboxDetails, socket: WebSocket) {
    this.#ctx = ctx
    this.#sandbox = sandbox
    this.#socket = socket
    socket.on('message', (data, isBinary) => this.#message({ data, isBinary }))
    socket.once('close', () => this.#running?.run?.leave())
  }

  #message(message: Message): void {
    const { data, isBinary } = message
    const envelope = isBinary ? undefined : readEnvelope(String(data))
    if (envelope?.type === 'op.start') this.start(String(envelope.op), envelope.id, searchOf(envelope.args))
    if (envelope) return
    if (this.#running?.run) this.#running.run.message(data, isBinary)
    else if (this.#running) this.#hold(this.#running, message)
    // What was on its way to an operation when it ended must not be taken for a fault of the next one.
    else if (isBinary && !this.#hasRun) this.#refuse('op.not_active', 'no operation is running')
  }

  #hold(running: Running, message: Message): void {
    running.held.push(message)
    running.heldBytes += bytesOf(message.data).length
    if (running.heldBytes > mostHeldBytes) this.#socket.terminate()
  }

  start(op: string, id: unknown, args: URLSearchParams): void {
    const operation = Object.hasOwn(controlOperations, op) ? controlOperations[op] : undefined
    if (this.#running) this.#refuse('op.busy', 'an operation is already running', id)
    else if (!operation) this.#refuse('op.not_found', `there is no operation ${JSON.stringify(op)}`, id)
    else this.#run(operation, id, args)
  }

  #run(operation: ControlOperation, id: unknown, args: URLSearchParams): void {
    const running: Running = { id, held: [], heldBytes: 0 }
    this.#running = running
    this.#hasRun = true
    const over = (message: () => void) => {
      if (this.#running !== running) return
      this.#running = undefined
      message()
    }
    const fail = (error: unknown) => over(() => this.#fail(error, id))
    operation({
      ctx: this.#ctx,
      sandbox: this.#sandbox,
      args,
      socket: this.#socket,
      complete: (result) =>
        over(() => this.#send({ type: 'op.complete', ...named(id), args: { ok: true, ...result } })),
      fail,
    }).then((run) => this.#begin(running, run), fail)
  }

  #begin(running: Running, run: ControlRun): void {
    running.run = run
    for (const { data, isBinary } of running.held.splice(0)) run.message(data, isBinary)
    if (this.#socket.readyState !== this.#socket.OPEN) run.leave()
  }

  #fail(error: unknown, id: unknown): void {
    const { code, message, details } = asBerthError(error)
    // What the system inside said to a file operation tells more than the kind of refusal.
    const own = details.fields?.code
    this.#refuse(own ? String(own) : code === 'not_found' ? 'op.not_found' : code, message, id)
  }

  /** Clients read the sentence under either name. */
  #refuse(code: string, message: string, id?: unknown): void {
    this.#send({ type: 'op.error', ...named(id), args: { code, message, error: message } })
  }

  #send(message: object): void {
    this.#socket.send(`control:${JSON.stringify(message)}`)
  }
}

function named(id: unknown): { id?: unknown } {
  return id === undefined ? {} : { id }
}

/** Some clients leave the prefix out. */
function readEnvelope(text: string): Record<string, unknown> | undefined {
  const message = readObject(text.replace(/^control:/, ''))
  const isOurs = text.startsWith('control:') || String(message?.type).startsWith('op.') || message?.type === 'release'
  return isOurs ? message : undefined
}

function searchOf(args: unknown): URLSearchParams {
  if (typeof args === 'string') return new URLSearchParams(args)
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries((args ?? {}) as Record<string, unknown>)) {
    for (const one of Array.isArray(value) ? value : [value]) search.append(name, String(one))
  }
  return search
}

async function startFollowed({ ctx, sandbox, args }: Pick<ControlCall, 'ctx' | 'sandbox' | 'args'>): Promise<Followed> {
  const prepared = await prepareIn(ctx, sandbox, args)
  return { ctx, sandbox, startedAt: ticksNow(), session: prepared.start(), isOwner: true }
}

async function runExec({ ctx, sandbox, args, socket, complete }: ControlCall): Promise<ControlRun> {
  const id = args.get('id')
  const followed: Followed = id
    ? { ctx, sandbox, session: findIn(ctx, sandbox, id), isOwner: false }
    : await startFollowed({ ctx, sandbox, args })
  const { session } = followed
  const follower = follow(socket, followed, (exitCode) => complete({ exitCode }))
  return {
    leave: follower.leave,
    message(data, isBinary) {
      const bytes = bytesOf(data)
      // Some clients say everything in binary here.
      const said = !isBinary || bytes[0] === openBrace ? readClientMessage(bytes.toString()) : undefined
      if (said) obey(session, said)
      else if (isBinary) follower.message(session.facts.tty ? bytes : prefixed(bytes), true)
    },
  }
}

const openBrace = 0x7b

/** Some clients send input as it is. */
function prefixed(bytes: Buffer): Buffer {
  if (bytes[0] === stdinByte || (bytes[0] === stdinEndByte && bytes.length === 1)) return bytes
  return Buffer.concat([Buffer.from([stdinByte]), bytes])
}
