// Answers names for machines, by the network that they are in, which their address tells.
import { createSocket, type Socket as PacketSocket } from 'node:dgram'
import { createServer, type Server, type Socket } from 'node:net'
import { findMachineOf, resolverAddress } from '../../model/network.ts'
import { listNames } from '../../store/app/name.ts'
import type { Query } from '../../store/db.ts'
import type { DatabaseRoute } from '../tcp/database.ts'
import { createForwarder, type Forwarder, framed, takeFrame } from './forward.ts'
import { type Answer, answerCode, isReadable, type Question, readQuestion, writeAnswer } from './message.ts'
import { NameTable } from './table.ts'

export interface NamesSettings {
  homeNumber: number
  /** Who knows all other names: addresses, with a port behind `#` where it is not the usual one. */
  upstreams: string[]
}

export interface Names {
  /** Asks again for the names of these apps, or of all. */
  catchUp(db: Query, appIds: string[] | null): Promise<void>
  /** All clusters that are known by name. */
  fillDatabases(routes: DatabaseRoute[]): void
  close(): void
}

interface Listening {
  packets: PacketSocket
  streams: Server
}

const dnsPort = 53
/** Of one machine. The rules of its network let through fewer packets; a stream may hold many in one. */
const questionsPerSecond = 5_000
const maxStreams = 256
const maxStreamsEach = 16
const idleMillis = 10_000
/** Of one stream, read and not yet answered. */
const maxBufferedBytes = 16 * 1_024
const largestMessage = 65_535

/** Several processes answer at the same place; a port below 1024 has to be taken while this is root. */
export async function listenForNames(address: string, port = dnsPort): Promise<Listening> {
  const packets = createSocket({ type: 'udp6', reusePort: true, recvBufferSize: 1_048_576 })
  const streams = createServer({ noDelay: true })
  await Promise.all([
    new Promise<void>((resolve, reject) => packets.once('error', reject).bind({ address, port }, resolve)),
    new Promise<void>((resolve, reject) =>
      streams.once('error', reject).listen({ host: address, port, reusePort: true }, resolve),
    ),
  ])
  return { packets, streams }
}

export async function startNames(
  settings: NamesSettings,
  listening = listenForNames(resolverAddress(settings.homeNumber)),
): Promise<Names> {
  const { packets, streams } = await listening
  const table = new NameTable(settings.homeNumber)
  const forwarder = createForwarder(settings.upstreams)
  const asking = createAsking(settings, table, forwarder)
  packets.removeAllListeners('error').on('error', () => undefined)
  streams.removeAllListeners('error').on('error', () => undefined)
  packets.on('message', async (message, { address, port }) => {
    const answer = await asking.ask(address, message, 'udp')
    if (answer) packets.send(answer, port, address, () => undefined)
  })
  const open = serveStreams(streams, asking)
  return {
    async catchUp(db, appIds) {
      if (appIds?.length === 0) return
      const apps = await listNames(db, appIds)
      if (appIds) table.change(appIds, apps)
      else table.fill(apps)
    },
    fillDatabases: (routes) => table.fillDatabases(routes),
    close() {
      packets.close()
      streams.close()
      for (const socket of open) socket.destroy()
    },
  }
}

interface Asking {
  /** Undefined when there is nothing to say. */
  ask(address: string, message: Buffer, over: 'udp' | 'tcp'): Promise<Buffer | undefined>
}

function createAsking({ homeNumber }: NamesSettings, table: NameTable, forwarder: Forwarder): Asking {
  let second = 0
  let counts = new Map<number, number>()

  /** However much one machine asks, the others are answered. */
  function isTooMuch(slot: number): boolean {
    const now = Math.floor(performance.now() / 1_000)
    if (now !== second) [second, counts] = [now, new Map()]
    const count = (counts.get(slot) ?? 0) + 1
    counts.set(slot, count)
    return count > questionsPerSecond
  }

  async function ask(address: string, message: Buffer, over: 'udp' | 'tcp'): Promise<Buffer | undefined> {
    const asker = findMachineOf(homeNumber, address)
    if (!asker || isTooMuch(asker.slot)) return undefined
    const question = readQuestion(message)
    if (!question) return undefined
    const most = over === 'udp' ? question.maxBytes : largestMessage
    const answer = refusalOf(question) ?? table.answer(asker.networkNumber, question.name, question.type)
    if (answer) return writeAnswer(question, answer, most)
    const forwarded = await forwarder.ask(String(asker.slot), message, over)
    return forwarded ?? writeAnswer(question, { code: answerCode.failed }, most)
  }

  return { ask }
}

function refusalOf(question: Question): Answer | undefined {
  if (question.flags & 0x7800) return { code: answerCode.notImplemented }
  if (!isReadable(question)) return { code: answerCode.badFormat }
  return question.isInternet ? undefined : { code: answerCode.refused }
}

/** Answers the set of those that are open. */
function serveStreams(server: Server, asking: Asking): Set<Socket> {
  const open = new Set<Socket>()
  server.on('connection', (socket: Socket) => {
    const address = socket.remoteAddress ?? ''
    const own = [...open].filter((other) => other.remoteAddress === address).length
    if (open.size >= maxStreams || own >= maxStreamsEach) return socket.destroy()
    open.add(socket)
    socket.on('error', () => undefined)
    socket.on('close', () => open.delete(socket))
    socket.setTimeout(idleMillis, () => socket.destroy())
    return serveStream(socket, address, asking)
  })
  return open
}

/** One question after the other: who sends faster waits. */
function serveStream(socket: Socket, address: string, asking: Asking): void {
  let received = Buffer.alloc(0)
  let isBusy = false

  async function work(): Promise<void> {
    if (isBusy) return
    isBusy = true
    for (let message = takeFrame(received); message && !socket.destroyed; message = takeFrame(received)) {
      received = received.subarray(2 + message.length)
      const answer = await asking.ask(address, message, 'tcp')
      if (!answer || socket.writableLength > maxBufferedBytes) return void socket.destroy()
      socket.write(framed(answer))
    }
    isBusy = false
    socket.resume()
  }

  socket.on('data', (data: Buffer) => {
    received = Buffer.concat([received, data])
    if (isBusy && received.length > maxBufferedBytes) socket.pause()
    void work()
  })
}
