// Forwards questions for public names to the resolvers of the host.
import { randomInt } from 'node:crypto'
import { createSocket } from 'node:dgram'
import { connect } from 'node:net'
import { frameMessage, readFrame } from './frame.ts'

export interface Forwarder {
  /** Returns undefined when no resolver answered, or when this client or all together have too many open questions. */
  ask(client: string, message: Buffer, protocol: 'udp' | 'tcp'): Promise<Buffer | undefined>
}

const maxPending = 512
const maxPendingPerClient = 32
const timeoutMs = 2_000
const dnsPort = 53

/** Counts the open questions of each client. */
class PendingQuestions {
  private readonly byClient = new Map<string, number>()
  private total = 0

  /** Returns false when there are too many. */
  add(client: string): boolean {
    const count = this.byClient.get(client) ?? 0
    if (this.total >= maxPending || count >= maxPendingPerClient) return false
    this.total += 1
    this.byClient.set(client, count + 1)
    return true
  }

  remove(client: string): void {
    this.total -= 1
    const count = this.byClient.get(client)! - 1
    if (count === 0) this.byClient.delete(client)
    else this.byClient.set(client, count)
  }
}

/** Resolvers are written as `address` or `address#port`. */
export function createForwarder(resolvers: string[]): Forwarder {
  const pending = new PendingQuestions()

  async function ask(client: string, message: Buffer, protocol: 'udp' | 'tcp'): Promise<Buffer | undefined> {
    if (!pending.add(client)) return undefined
    try {
      for (const resolver of resolvers) {
        const answer = await (protocol === 'udp' ? askOverUdp : askOverTcp)(resolver, message)
        if (answer) return answer
      }
      return undefined
    } finally {
      pending.remove(client)
    }
  }

  return { ask }
}

function parseResolver(resolver: string): { host: string; port: number } {
  const [host = '', port] = resolver.split('#')
  return { host, port: port ? Number(port) : dnsPort }
}

/** Uses a random id and port, so that only the resolver itself can answer. */
function askOverUdp(resolver: string, message: Buffer): Promise<Buffer | undefined> {
  const { promise, resolve } = Promise.withResolvers<Buffer | undefined>()
  const { host, port } = parseResolver(resolver)
  const question = Buffer.from(message)
  question.writeUInt16BE(randomInt(65_536), 0)
  const socket = createSocket(host.includes(':') ? 'udp6' : 'udp4')
  const timer = setTimeout(() => resolve(undefined), timeoutMs)
  socket.on('error', () => resolve(undefined))
  socket.on('message', (answer) => {
    if (!isAnswerTo(question, answer)) return
    answer.writeUInt16BE(message.readUInt16BE(0), 0)
    resolve(answer)
  })
  socket.connect(port, host, () => socket.send(question))
  return promise.finally(() => {
    clearTimeout(timer)
    socket.close()
  })
}

function isAnswerTo(question: Buffer, answer: Buffer): boolean {
  return answer.length >= 12 && answer.readUInt16BE(0) === question.readUInt16BE(0) && (answer[2]! & 0x80) !== 0
}

function askOverTcp(resolver: string, message: Buffer): Promise<Buffer | undefined> {
  const { promise, resolve } = Promise.withResolvers<Buffer | undefined>()
  const socket = connect(parseResolver(resolver))
  const timer = setTimeout(() => resolve(undefined), timeoutMs)
  let received = Buffer.alloc(0)
  socket.on('error', () => resolve(undefined))
  socket.on('close', () => resolve(undefined))
  socket.on('connect', () => socket.write(frameMessage(message)))
  socket.on('data', (data) => {
    received = Buffer.concat([received, data])
    const answer = readFrame(received)
    if (answer) resolve(isAnswerTo(message, answer) ? answer : undefined)
  })
  return promise.finally(() => {
    clearTimeout(timer)
    socket.destroy()
  })
}
