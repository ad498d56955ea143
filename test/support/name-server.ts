// A name server on loopback that answers what a test tells it to, also something else each time.
import { createSocket } from 'node:dgram'

export interface FakeNameServer {
  /** Address and port, as BERTH_OUTBOUND_DNS takes it. */
  address: string
  /** The names in the order in which their IPv4 addresses were asked for. */
  asked: string[]
  close(): Promise<void>
}

/** Returns the addresses of a name for the n-th question, counted from 0; undefined: there is no such name. */
export type Resolve = (name: string, time: number) => string[] | undefined

const typeA = 1
const typeAaaa = 28

export async function startNameServer(resolve: Resolve): Promise<FakeNameServer> {
  const socket = createSocket('udp4')
  const asked: string[] = []
  socket.on('message', (message, { port, address }) => {
    const { name, type, end } = readQuestion(message)
    const time = asked.filter((other) => other === name).length
    if (type === typeA) asked.push(name)
    const found = resolve(name, type === typeA ? time : Math.max(time - 1, 0))
    const fitting = (found ?? []).filter((entry) => (entry.includes(':') ? type === typeAaaa : type === typeA))
    socket.send(answer(message.subarray(0, end), fitting, found === undefined), port, address)
  })
  await new Promise<void>((done) => socket.bind(0, '127.0.0.1', done))
  return {
    address: `127.0.0.1:${socket.address().port}`,
    asked,
    close: () => new Promise((done) => socket.close(() => done())),
  }
}

function readQuestion(message: Buffer): { name: string; type: number; end: number } {
  const labels: string[] = []
  let at = 12
  for (let length = message[at]!; length > 0; length = message[at]!) {
    labels.push(message.toString('latin1', at + 1, at + 1 + length))
    at += length + 1
  }
  return { name: labels.join('.').toLowerCase(), type: message.readUInt16BE(at + 1), end: at + 5 }
}

function answer(question: Buffer, addresses: string[], isUnknown: boolean): Buffer {
  const header = Buffer.from(question.subarray(0, 12))
  header.writeUInt16BE(isUnknown ? 0x8183 : 0x8180, 2)
  header.writeUInt16BE(addresses.length, 6)
  header.fill(0, 8, 12)
  const records = addresses.map((address) => {
    const data = bytesOf(address)
    const record = Buffer.alloc(12)
    record.writeUInt16BE(0xc00c, 0)
    record.writeUInt16BE(data.length === 4 ? typeA : typeAaaa, 2)
    record.writeUInt16BE(1, 4)
    record.writeUInt16BE(data.length, 10)
    return Buffer.concat([record, data])
  })
  return Buffer.concat([header, question.subarray(12), ...records])
}

/** The bytes of an IPv4 address, or of an IPv6 address in hexadecimal groups. */
function bytesOf(address: string): Buffer {
  if (!address.includes(':')) return Buffer.from(address.split('.').map(Number))
  const [head = '', tail = ''] = address.split('::')
  const groups = (text: string) => (text === '' ? [] : text.split(':'))
  const zeros = Array<string>(8 - groups(head).length - groups(tail).length).fill('0')
  return Buffer.from(
    [...groups(head), ...zeros, ...groups(tail)].map((group) => group.padStart(4, '0')).join(''),
    'hex',
  )
}
