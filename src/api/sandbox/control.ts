// One WebSocket on which operations run one after another, each announced by a text message that starts with `control:`.
import type { RawData, WebSocket } from 'ws'
import type { LiveContext } from '../../live/context.ts'
import { getSessionIn, prepareExecIn } from '../../live/sandbox/exec.ts'
import { ticksNow } from '../../live/sandbox/port.ts'
import { getSandbox } from '../../live/sandbox/sandbox.ts'
import { notFound } from '../../model/errors.ts'
import { readClientMessage, readObject, stdinByte, stdinEndByte } from '../../model/sandbox/exec.ts'
import type { SandboxDetails } from '../../model/sandbox/sandbox.ts'
import { asBerthError } from '../http/problem.ts'
import type { SocketRoute } from '../http/route.ts'
import { fileOperations } from './control-file.ts'
import type { ControlCall, ControlOperation, ControlRun } from './control-operation.ts'
import { socketHeaders } from './exec.ts'
import { applyMessage, bytesOf, type Followed, follow } from './exec-socket.ts'

/** The operations of a channel, by the value of `op`. */
const controlOperations: Record<string, ControlOperation> = { exec: runExec, ...fileOperations }

/**
 * This client reads a channel from two goroutines, which take messages from each other, so that most of its operations
 * hang. Without a channel it opens a socket for each. See docs/adr/0012-no-control-channel-for-go.md.
 */
const clientsWithoutChannel = /^sprites-go-sdk\//

export const controlSockets: SocketRoute[] = [
  {
    path: '/v1/sandboxes/{name}/control',
    id: 'control',
    tag: 'Exec',
    summary: 'Run operations one after another on one connection',
    open: async ({ ctx, params, headers, search }) => {
      const sandbox = await getSandbox(ctx, params.name!, 'write')
      if (clientsWithoutChannel.test(headers['user-agent'] ?? ''))
        throw notFound('control channels are not available to this client')
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

/** The limit on messages queued for an operation that has not started yet. */
const maxHeldBytes = 16 * 1024 * 1024

interface Message {
  data: RawData
  isBinary: boolean
}

interface Running {
  id: unknown
  /** Undefined while the operation starts; messages are queued until then. */
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
    if (envelope?.type === 'op.start') this.start(String(envelope.op), envelope.id, toSearchParams(envelope.args))
    if (envelope) return
    if (this.#running?.run) this.#running.run.message(data, isBinary)
    else if (this.#running) this.#hold(this.#running, message)
    // Once an operation has run, late messages to it are dropped, because clients would relate an error to the next one.
    else if (isBinary && !this.#hasRun) this.#refuse('op.not_active', 'no operation is running')
  }

  #hold(running: Running, message: Message): void {
    running.held.push(message)
    running.heldBytes += bytesOf(message.data).length
    if (running.heldBytes > maxHeldBytes) this.#socket.terminate()
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
    const finish = (report: () => void) => {
      if (this.#running !== running) return
      this.#running = undefined
      report()
    }
    const fail = (error: unknown) => finish(() => this.#fail(error, id))
    operation({
      ctx: this.#ctx,
      sandbox: this.#sandbox,
      args,
      socket: this.#socket,
      complete: (result) =>
        finish(() => this.#send({ type: 'op.complete', ...idField(id), args: { ok: true, ...result } })),
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
    // The errno of a file operation, such as ENOENT, is more specific than the code of the error.
    const errno = details.fields?.code
    this.#refuse(errno ? String(errno) : code === 'not_found' ? 'op.not_found' : code, message, id)
  }

  /** Some clients read `message`, others `error`. */
  #refuse(code: string, message: string, id?: unknown): void {
    this.#send({ type: 'op.error', ...idField(id), args: { code, message, error: message } })
  }

  #send(message: object): void {
    this.#socket.send(`control:${JSON.stringify(message)}`)
  }
}

function idField(id: unknown): { id?: unknown } {
  return id === undefined ? {} : { id }
}

/** Some clients omit the `control:` prefix. */
function readEnvelope(text: string): Record<string, unknown> | undefined {
  const message = readObject(text.replace(/^control:/, ''))
  const isEnvelope =
    text.startsWith('control:') || String(message?.type).startsWith('op.') || message?.type === 'release'
  return isEnvelope ? message : undefined
}

function toSearchParams(args: unknown): URLSearchParams {
  if (typeof args === 'string') return new URLSearchParams(args)
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries((args ?? {}) as Record<string, unknown>)) {
    for (const one of Array.isArray(value) ? value : [value]) search.append(name, String(one))
  }
  return search
}

async function startFollowed({ ctx, sandbox, args }: Pick<ControlCall, 'ctx' | 'sandbox' | 'args'>): Promise<Followed> {
  const prepared = await prepareExecIn(ctx, sandbox, args)
  return { ctx, sandbox, startedAt: ticksNow(), session: prepared.start('held'), isOwner: true }
}

async function runExec({ ctx, sandbox, args, socket, complete }: ControlCall): Promise<ControlRun> {
  const id = args.get('id')
  const followed: Followed = id
    ? { ctx, sandbox, session: getSessionIn(ctx, sandbox, id), isOwner: false }
    : await startFollowed({ ctx, sandbox, args })
  const { session } = followed
  const follower = follow(socket, followed, (exitCode) => complete({ exitCode }))
  return {
    leave: follower.leave,
    message(data, isBinary) {
      const bytes = bytesOf(data)
      // Some clients send control messages as binary ones.
      const mayBeCommand = !isBinary || (bytes[0] === openBrace && bytes.length <= maxCommandBytes)
      const command = mayBeCommand ? readClientMessage(bytes.toString()) : undefined
      if (command) applyMessage(session, command)
      else if (isBinary) follower.message(session.facts.tty ? bytes : withStreamByte(bytes), true)
    },
  }
}

const openBrace = 0x7b

/** Input of the command that begins with a brace is longer than this at times; a control message never is. */
const maxCommandBytes = 1024

/** Some clients send input without the leading stream byte. */
function withStreamByte(bytes: Buffer): Buffer {
  if (bytes[0] === stdinByte || (bytes[0] === stdinEndByte && bytes.length === 1)) return bytes
  return Buffer.concat([Buffer.from([stdinByte]), bytes])
}
