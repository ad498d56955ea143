// Questions for names that are none of ours go to the resolvers that the host asks, as they came, and so do their answers.
import { randomInt } from 'node:crypto'
import { createSocket } from 'node:dgram'
import { connect } from 'node:net'

export interface Forwarder {
  /** Undefined when there was no answer, or when this asker or all together have too many questions under way. */
  ask(asker: string, message: Buffer, over: 'udp' | 'tcp'): Promise<Buffer | undefined>
}

const maxPending = 512
const maxPendingEach = 32
const tryMillis = 2_000
const dnsPort = 53

/** Written as addresses, with a port behind `#` where it is not the usual one. */
export function createForwarder(upstreams: string[]): Forwarder {
  const pending = new Map<string, number>()
  let total = 0

  function begin(asker: string): boolean {
    const own = pending.get(asker) ?? 0
    if (total >= maxPending || own >= maxPendingEach) return false
    total += 1
    pending.set(asker, own + 1)
    return true
  }

  function end(asker: string): void {
    total -= 1
    const own = pending.get(asker)! - 1
    if (own === 0) pending.delete(asker)
    else pending.set(asker, own)
  }

  async function ask(asker: string, message: Buffer, over: 'udp' | 'tcp'): Promise<Buffer | undefined> {
    if (!begin(asker)) return undefined
    try {
      for (const upstream of upstreams) {
        const answer = await (over === 'udp' ? askByPacket : askByStream)(upstream, message)
        if (answer) return answer
      }
      return undefined
    } finally {
      end(asker)
    }
  }

  return { ask }
}

function placeOf(upstream: string): { host: string; port: number } {
  const [host = '', port] = upstream.split('#')
  return { host, port: port ? Number(port) : dnsPort }
}

/** With a number and a port that nobody can guess, so that only the one that was asked can answer. */
function askByPacket(upstream: string, message: Buffer): Promise<Buffer | undefined> {
  const { promise, resolve } = Promise.withResolvers<Buffer | undefined>()
  const { host, port } = placeOf(upstream)
  const asked = Buffer.from(message)
  asked.writeUInt16BE(randomInt(65_536), 0)
  const socket = createSocket(host.includes(':') ? 'udp6' : 'udp4')
  const timer = setTimeout(() => resolve(undefined), tryMillis)
  socket.on('error', () => resolve(undefined))
  socket.on('message', (answer) => {
    if (!isAnswerTo(asked, answer)) return
    answer.writeUInt16BE(message.readUInt16BE(0), 0)
    resolve(answer)
  })
  socket.connect(port, host, () => socket.send(asked))
  return promise.finally(() => {
    clearTimeout(timer)
    socket.close()
  })
}

function isAnswerTo(asked: Buffer, answer: Buffer): boolean {
  return answer.length >= 12 && answer.readUInt16BE(0) === asked.readUInt16BE(0) && (answer[2]! & 0x80) !== 0
}

function askByStream(upstream: string, message: Buffer): Promise<Buffer | undefined> {
  const { promise, resolve } = Promise.withResolvers<Buffer | undefined>()
  const socket = connect(placeOf(upstream))
  const timer = setTimeout(() => resolve(undefined), tryMillis)
  let received = Buffer.alloc(0)
  socket.on('error', () => resolve(undefined))
  socket.on('close', () => resolve(undefined))
  socket.on('connect', () => socket.write(framed(message)))
  socket.on('data', (data) => {
    received = Buffer.concat([received, data])
    const whole = takeFrame(received)
    if (whole) resolve(isAnswerTo(message, whole) ? whole : undefined)
  })
  return promise.finally(() => {
    clearTimeout(timer)
    socket.destroy()
  })
}

/** In a stream, each message has its length before it. */
export function framed(message: Buffer): Buffer {
  const length = Buffer.alloc(2)
  length.writeUInt16BE(message.length)
  return Buffer.concat([length, message])
}

/** The first message, when it is there whole. */
export function takeFrame(received: Buffer): Buffer | undefined {
  if (received.length < 2 || received.length < 2 + received.readUInt16BE(0)) return undefined
  return received.subarray(2, 2 + received.readUInt16BE(0))
}
