// The name server for machines. The source address of a question tells which private network the machine is in.
import { createSocket, type Socket as UdpSocket } from 'node:dgram'
import { createServer, type Server, type Socket } from 'node:net'
import { parseMachineAddress, resolverAddress } from '../../model/network.ts'
import { listNames } from '../../store/app/name.ts'
import type { Query } from '../../store/db.ts'
import type { DatabaseRoute } from '../routing/database.ts'
import { createForwarder, type Forwarder } from './forwarder.ts'
import { frameMessage, readFrame } from './frame.ts'
import { type Answer, answerCode, isReadable, type Question, readQuestion, writeAnswer } from './message.ts'
import { NameTable } from './table.ts'

export interface NameServerSettings {
  homeNumber: number
  /** Resolvers for all other names, as `address` or `address#port`. */
  upstreams: string[]
}

export interface NameServer {
  /** Reloads the names of these apps; null reloads all. */
  reload(db: Query, appIds: string[] | null): Promise<void>
  /** Replaces the names of all clusters. */
  fillDatabases(routes: DatabaseRoute[]): void
  close(): void
}

interface Listeners {
  udp: UdpSocket
  tcp: Server
}

const dnsPort = 53
/** The limit of one machine. The packet filter allows fewer packets, but a TCP stream can hold many questions. */
const maxQuestionsPerSecond = 5_000
const maxStreams = 256
const maxStreamsPerClient = 16
const idleTimeoutMs = 10_000
/** Unanswered questions, or unsent answers, of one stream. */
const maxBufferedBytes = 16 * 1_024
const maxMessageBytes = 65_535

/** Opens the sockets, which all workers share; binding port 53 needs root. */
export async function bindNameServer(address: string, port = dnsPort): Promise<Listeners> {
  const udp = createSocket({ type: 'udp6', reusePort: true, recvBufferSize: 1_048_576 })
  const tcp = createServer({ noDelay: true })
  await Promise.all([
    new Promise<void>((resolve, reject) => udp.once('error', reject).bind({ address, port }, resolve)),
    new Promise<void>((resolve, reject) =>
      tcp.once('error', reject).listen({ host: address, port, reusePort: true }, resolve),
    ),
  ])
  return { udp, tcp }
}

export async function startNameServer(
  settings: NameServerSettings,
  listeners = bindNameServer(resolverAddress(settings.homeNumber)),
): Promise<NameServer> {
  const { udp, tcp } = await listeners
  const table = new NameTable(settings.homeNumber)
  const responder = new Responder(settings, table, createForwarder(settings.upstreams))
  udp.removeAllListeners('error').on('error', () => undefined)
  tcp.removeAllListeners('error').on('error', () => undefined)
  udp.on('message', async (message, { address, port }) => {
    const answer = await responder.answer(address, message, 'udp')
    if (answer) udp.send(answer, port, address, () => undefined)
  })
  const streams = serveStreams(tcp, responder)
  return {
    async reload(db, appIds) {
      if (appIds?.length === 0) return
      const apps = await listNames(db, appIds)
      if (appIds) table.change(appIds, apps)
      else table.fill(apps)
    },
    fillDatabases: (routes) => table.fillDatabases(routes),
    close() {
      udp.close()
      tcp.close()
      for (const socket of streams) socket.destroy()
    },
  }
}

/** Answers questions from the name table, or forwards them. */
class Responder {
  private readonly homeNumber: number
  private readonly table: NameTable
  private readonly forwarder: Forwarder
  private readonly rateLimit = new RateLimit()

  constructor({ homeNumber }: NameServerSettings, table: NameTable, forwarder: Forwarder) {
    this.homeNumber = homeNumber
    this.table = table
    this.forwarder = forwarder
  }

  /** Returns undefined when the message gets no response. */
  async answer(address: string, message: Buffer, protocol: 'udp' | 'tcp'): Promise<Buffer | undefined> {
    const machine = parseMachineAddress(this.homeNumber, address)
    if (!machine || !this.rateLimit.allow(machine.slot)) return undefined
    const question = readQuestion(message)
    if (!question) return undefined
    const maxBytes = protocol === 'udp' ? question.maxBytes : maxMessageBytes
    const answer = checkQuestion(question) ?? this.table.answer(machine.networkNumber, question.name, question.type)
    if (answer) return writeAnswer(question, answer, maxBytes)
    const forwarded = await this.forwarder.ask(String(machine.slot), message, protocol)
    return forwarded ?? writeAnswer(question, { code: answerCode.failed }, maxBytes)
  }
}

/** Limits the questions of each machine, so that one machine cannot keep the others from being answered. */
class RateLimit {
  private second = 0
  private counts = new Map<number, number>()

  allow(slot: number): boolean {
    const now = Math.floor(performance.now() / 1_000)
    if (now !== this.second) {
      this.second = now
      this.counts = new Map()
    }
    const count = (this.counts.get(slot) ?? 0) + 1
    this.counts.set(slot, count)
    return count <= maxQuestionsPerSecond
  }
}

/** Returns an error response for questions that are malformed or not supported. */
function checkQuestion(question: Question): Answer | undefined {
  if (question.flags & 0x7800) return { code: answerCode.notImplemented }
  if (!isReadable(question)) return { code: answerCode.badFormat }
  return question.isInternet ? undefined : { code: answerCode.refused }
}

/** Returns the set of open connections. */
function serveStreams(server: Server, responder: Responder): Set<Socket> {
  const open = new Set<Socket>()
  server.on('connection', (socket: Socket) => {
    const address = socket.remoteAddress ?? ''
    const ofClient = [...open].filter((other) => other.remoteAddress === address).length
    if (open.size >= maxStreams || ofClient >= maxStreamsPerClient) return socket.destroy()
    open.add(socket)
    socket.on('error', () => undefined)
    socket.on('close', () => open.delete(socket))
    socket.setTimeout(idleTimeoutMs, () => socket.destroy())
    return serveStream(socket, address, responder)
  })
  return open
}

/** Answers one question at a time, and stops reading when too many wait. */
function serveStream(socket: Socket, address: string, responder: Responder): void {
  let received = Buffer.alloc(0)
  let isBusy = false

  async function answerAll(): Promise<void> {
    if (isBusy) return
    isBusy = true
    for (let message = readFrame(received); message && !socket.destroyed; message = readFrame(received)) {
      received = received.subarray(2 + message.length)
      const answer = await responder.answer(address, message, 'tcp')
      if (!answer || socket.writableLength > maxBufferedBytes) return void socket.destroy()
      socket.write(frameMessage(answer))
    }
    isBusy = false
    socket.resume()
  }

  socket.on('data', (data: Buffer) => {
    received = Buffer.concat([received, data])
    if (isBusy && received.length > maxBufferedBytes) socket.pause()
    void answerAll()
  })
}
