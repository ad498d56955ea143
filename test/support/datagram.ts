import { createSocket, type Socket } from 'node:dgram'
import { until } from './until.ts'

export interface Heard {
  text: string
  bytes: number
  /** The sender, as `address port`. */
  from: string
}

export interface Talker {
  port: number
  heard: Heard[]
  /** Error codes of the socket. */
  errors: string[]
  say(text: string | Buffer): void
  /** Sends the text until a response arrives, as datagrams may be lost. Returns the first one. */
  ask(text: string): Promise<Heard>
  close(): void
}

const bufferBytes = 4_194_304

async function bound(port: number): Promise<Socket> {
  const socket = createSocket({ type: 'udp4', recvBufferSize: bufferBytes })
  await new Promise<void>((resolve, reject) => {
    socket.once('error', reject)
    socket.bind(port, '127.0.0.1', resolve)
  })
  socket.removeAllListeners('error')
  return socket
}

/** The program in a machine: responds to each datagram with its own name and the text. */
export async function startEcho(name: string, port = 0): Promise<{ port: number; heard: Heard[]; close(): void }> {
  const socket = await bound(port)
  const heard: Heard[] = []
  socket.on('error', () => undefined)
  socket.on('message', (bytes, from) => {
    heard.push({ text: String(bytes), bytes: bytes.length, from: `${from.address} ${from.port}` })
    socket.send(bytes.length > 1_000 ? bytes : `${name} ${bytes}`, from.port, from.address, () => undefined)
  })
  return { port: socket.address().port, heard, close: () => void socket.close() }
}

/** A client that sends to one address. */
export async function startTalker(address: string, port: number): Promise<Talker> {
  const socket = await bound(0)
  const heard: Heard[] = []
  const errors: string[] = []
  const { port: own } = socket.address()
  const note = (error: NodeJS.ErrnoException | null) => void (error && errors.push(error.code!))
  socket.on('error', note)
  socket.on('message', (bytes, from) => {
    heard.push({ text: String(bytes), bytes: bytes.length, from: `${from.address} ${from.port}` })
  })
  await new Promise<void>((resolve) => socket.connect(port, address, resolve))
  const say = (text: string | Buffer) => socket.send(text, note)
  return {
    port: own,
    heard,
    errors,
    say,
    async ask(text) {
      const find = () => heard.find((each) => each.text.endsWith(` ${text}`))
      await until(() => {
        if (!find()) say(text)
        return find() !== undefined
      })
      return find()!
    },
    close: () => void socket.close(),
  }
}
