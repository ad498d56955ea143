// The wire format of DNS. Questions come from untrusted machines, so every length is checked before it is used.
import { toHexDigits } from '../../model/network.ts'

export const recordType = { A: 1, SOA: 6, TXT: 16, AAAA: 28, OPT: 41, ANY: 255 }
export const answerCode = { ok: 0, badFormat: 1, failed: 2, noSuchName: 3, notImplemented: 4, refused: 5 }

export interface Question {
  id: number
  /** In lowercase, without the final dot. */
  name: string
  type: number
  isInternet: boolean
  /** The largest UDP response that the client accepts. */
  maxBytes: number
  /** The question section, which the response repeats; empty when the question is malformed. */
  bytes: Buffer
  flags: number
  hasOptions: boolean
}

export interface Answer {
  code: number
  addresses?: string[]
  /** The contents of a TXT record. */
  text?: string
  /** Set when the name or the record does not exist: the SOA record of this zone says how long to cache that. */
  zone?: string
}

const headerBytes = 12
const minPacketBytes = 512
/** The largest packet that is not fragmented. */
const maxPacketBytes = 1_232
const maxNameBytes = 255

/** Short, because machines start and stop at any time. */
const ttlSeconds = 1

/** Returns undefined for responses and fragments: answering them could make two servers answer each other forever. */
export function readQuestion(message: Buffer): Question | undefined {
  if (message.length < headerBytes) return undefined
  const flags = message.readUInt16BE(2)
  if (flags & 0x8000) return undefined
  const question: Question = {
    id: message.readUInt16BE(0),
    name: '',
    type: 0,
    isInternet: false,
    maxBytes: minPacketBytes,
    bytes: Buffer.alloc(0),
    flags,
    hasOptions: false,
  }
  if (message.readUInt16BE(4) !== 1) return question
  const end = readName(message, question)
  if (end === undefined || end + 4 > message.length) return question
  question.type = message.readUInt16BE(end)
  question.isInternet = message.readUInt16BE(end + 2) === 1
  question.bytes = message.subarray(headerBytes, end + 4)
  readOptions(message, end + 4, question)
  return question
}

/** Returns the offset after the name. Compression pointers are rejected, as questions do not need them. */
function readName(message: Buffer, question: Question): number | undefined {
  const labels: string[] = []
  let at = headerBytes
  for (;;) {
    const length = message[at]
    if (length === undefined || length > 63 || at + length - headerBytes > maxNameBytes) return undefined
    if (length === 0) break
    if (at + 1 + length > message.length) return undefined
    labels.push(message.toString('latin1', at + 1, at + 1 + length))
    at += 1 + length
  }
  // A label that contains a dot would look like another name.
  if (labels.some((label) => label.includes('.'))) return undefined
  question.name = labels.join('.').toLowerCase()
  return at + 1
}

/** Reads the packet size from the OPT record (EDNS), if that is the first record after the question. */
function readOptions(message: Buffer, at: number, question: Question): void {
  const isFirst = message.readUInt32BE(6) === 0 && message.readUInt16BE(10) >= 1
  if (!isFirst || at + 11 > message.length || message[at] !== 0) return
  if (message.readUInt16BE(at + 1) !== recordType.OPT) return
  question.hasOptions = true
  question.maxBytes = Math.min(Math.max(message.readUInt16BE(at + 3), minPacketBytes), maxPacketBytes)
}

export function isReadable(question: Question): boolean {
  return question.bytes.length > 0
}

/** Truncates a response that is too large and sets the TC flag, so that the client asks again over TCP. */
export function writeAnswer(question: Question, answer: Answer, maxBytes: number): Buffer {
  const records = [
    ...(answer.addresses ?? []).map((address) => record(recordType.AAAA, addressBytes(address))),
    ...(answer.text === undefined ? [] : [record(recordType.TXT, textBytes(answer.text))]),
  ]
  const authority = answer.zone === undefined ? [] : [zoneRecord(answer.zone)]
  const options = question.hasOptions ? [Buffer.from([0, 0, recordType.OPT, 4, 0xd0, 0, 0, 0, 0, 0, 0])] : []
  const full = join(question, answer.code, records, authority, options)
  if (full.length <= maxBytes) return full
  const truncated = join(question, answer.code, [], [], options)
  truncated.writeUInt16BE(truncated.readUInt16BE(2) | 0x0200, 2)
  return truncated
}

function join(question: Question, code: number, records: Buffer[], authority: Buffer[], options: Buffer[]): Buffer {
  const header = Buffer.alloc(headerBytes)
  header.writeUInt16BE(question.id, 0)
  // Authoritative response; the opcode and the RD flag of the question are repeated.
  header.writeUInt16BE(0x8400 | (question.flags & 0x7900) | 0x0080 | code, 2)
  header.writeUInt16BE(isReadable(question) ? 1 : 0, 4)
  header.writeUInt16BE(records.length, 6)
  header.writeUInt16BE(authority.length, 8)
  header.writeUInt16BE(options.length, 10)
  return Buffer.concat([header, question.bytes, ...records, ...authority, ...options])
}

/** The name is a pointer to the question, which follows the header. */
function record(type: number, data: Buffer): Buffer {
  const head = Buffer.alloc(12)
  head.writeUInt16BE(0xc000 | headerBytes, 0)
  head.writeUInt16BE(type, 2)
  head.writeUInt16BE(1, 4)
  head.writeUInt32BE(ttlSeconds, 6)
  head.writeUInt16BE(data.length, 10)
  return Buffer.concat([head, data])
}

function zoneRecord(zone: string): Buffer {
  const numbers = Buffer.alloc(20)
  for (const [at, value] of [1, 60, 60, 60, ttlSeconds].entries()) numbers.writeUInt32BE(value, at * 4)
  const data = Buffer.concat([nameBytes(`ns.${zone}`), nameBytes(`hostmaster.${zone}`), numbers])
  const rest = record(recordType.SOA, data).subarray(2)
  return Buffer.concat([nameBytes(zone), rest])
}

function nameBytes(name: string): Buffer {
  const labels = name.split('.').map((label) => Buffer.from(label, 'latin1'))
  return Buffer.concat([...labels.flatMap((label) => [Buffer.from([label.length]), label]), Buffer.from([0])])
}

function addressBytes(address: string): Buffer {
  return Buffer.from(toHexDigits(address), 'hex')
}

/** A TXT record consists of strings of at most 255 bytes. */
function textBytes(text: string): Buffer {
  const bytes = Buffer.from(text)
  const pieces: Buffer[] = []
  for (let at = 0; at < bytes.length || at === 0; at += 255) {
    const piece = bytes.subarray(at, at + 255)
    pieces.push(Buffer.from([piece.length]), piece)
  }
  return Buffer.concat(pieces)
}
