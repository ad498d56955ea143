// Questions for names and their answers, as they are on the wire. What strangers send is read here: nothing is taken
// that is not wholly in the message, and a question is small.

import { writtenOut } from '../../model/network.ts'

export const recordType = { A: 1, SOA: 6, TXT: 16, AAAA: 28, OPT: 41, ANY: 255 }
export const answerCode = { ok: 0, badFormat: 1, failed: 2, noSuchName: 3, notImplemented: 4, refused: 5 }

export interface Question {
  id: number
  /** In lower case, without the last dot. */
  name: string
  type: number
  isInternet: boolean
  /** What the asker takes in one packet. */
  maxBytes: number
  /** As it came, to be repeated in the answer. */
  bytes: Buffer
  flags: number
  hasOptions: boolean
}

export interface Answer {
  code: number
  addresses?: string[]
  /** One record of text. */
  text?: string
  /** Not there: how long to believe it is said by a record of the zone. */
  zone?: string
}

const headerBytes = 12
const smallestPacket = 512
/** As much as passes undivided. */
const largestPacket = 1_232
const maxNameBytes = 255

/** Seconds. Machines come and go. */
const timeToLive = 1

/** Undefined for what is no question: it is not answered, so that nobody is led to answer answers. */
export function readQuestion(message: Buffer): Question | undefined {
  if (message.length < headerBytes) return undefined
  const flags = message.readUInt16BE(2)
  if (flags & 0x8000) return undefined
  const question: Question = {
    id: message.readUInt16BE(0),
    name: '',
    type: 0,
    isInternet: false,
    maxBytes: smallestPacket,
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

/** Answers where it ends. A name of a question has no reason to point elsewhere. */
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
  // A dot within a label would make another name of it.
  if (labels.some((label) => label.includes('.'))) return undefined
  question.name = labels.join('.').toLowerCase()
  return at + 1
}

/** How large an answer may be stands in an additional record, if it is the only one. */
function readOptions(message: Buffer, at: number, question: Question): void {
  const isAlone = message.readUInt32BE(6) === 0 && message.readUInt16BE(10) >= 1
  if (!isAlone || at + 11 > message.length || message[at] !== 0) return
  if (message.readUInt16BE(at + 1) !== recordType.OPT) return
  question.hasOptions = true
  question.maxBytes = Math.min(Math.max(message.readUInt16BE(at + 3), smallestPacket), largestPacket)
}

export function isReadable(question: Question): boolean {
  return question.bytes.length > 0
}

/** Cut to what the asker takes, if there is a limit, and marked so that it asks again where there is none. */
export function writeAnswer(question: Question, answer: Answer, maxBytes: number): Buffer {
  const records = [
    ...(answer.addresses ?? []).map((address) => record(recordType.AAAA, addressBytes(address))),
    ...(answer.text === undefined ? [] : [record(recordType.TXT, textBytes(answer.text))]),
  ]
  const authority = answer.zone === undefined ? [] : [zoneRecord(answer.zone)]
  const options = question.hasOptions ? [Buffer.from([0, 0, recordType.OPT, 4, 0xd0, 0, 0, 0, 0, 0, 0])] : []
  const whole = join(question, answer.code, records, authority, options)
  if (whole.length <= maxBytes) return whole
  const cut = join(question, answer.code, [], [], options)
  cut.writeUInt16BE(cut.readUInt16BE(2) | 0x0200, 2)
  return cut
}

function join(question: Question, code: number, records: Buffer[], authority: Buffer[], options: Buffer[]): Buffer {
  const header = Buffer.alloc(headerBytes)
  header.writeUInt16BE(question.id, 0)
  // An answer that is ours to give; what was asked and whether recursion was wanted is repeated.
  header.writeUInt16BE(0x8400 | (question.flags & 0x7900) | 0x0080 | code, 2)
  header.writeUInt16BE(isReadable(question) ? 1 : 0, 4)
  header.writeUInt16BE(records.length, 6)
  header.writeUInt16BE(authority.length, 8)
  header.writeUInt16BE(options.length, 10)
  return Buffer.concat([header, question.bytes, ...records, ...authority, ...options])
}

/** Of the name that was asked for, which stands after the header. */
function record(type: number, data: Buffer): Buffer {
  const head = Buffer.alloc(12)
  head.writeUInt16BE(0xc000 | headerBytes, 0)
  head.writeUInt16BE(type, 2)
  head.writeUInt16BE(1, 4)
  head.writeUInt32BE(timeToLive, 6)
  head.writeUInt16BE(data.length, 10)
  return Buffer.concat([head, data])
}

function zoneRecord(zone: string): Buffer {
  const numbers = Buffer.alloc(20)
  for (const [at, value] of [1, 60, 60, 60, timeToLive].entries()) numbers.writeUInt32BE(value, at * 4)
  const data = Buffer.concat([nameBytes(`ns.${zone}`), nameBytes(`hostmaster.${zone}`), numbers])
  const rest = record(recordType.SOA, data).subarray(2)
  return Buffer.concat([nameBytes(zone), rest])
}

function nameBytes(name: string): Buffer {
  const labels = name.split('.').map((label) => Buffer.from(label, 'latin1'))
  return Buffer.concat([...labels.flatMap((label) => [Buffer.from([label.length]), label]), Buffer.from([0])])
}

function addressBytes(address: string): Buffer {
  return Buffer.from(writtenOut(address), 'hex')
}

/** In pieces of what one string holds. */
function textBytes(text: string): Buffer {
  const bytes = Buffer.from(text)
  const pieces: Buffer[] = []
  for (let at = 0; at < bytes.length || at === 0; at += 255) {
    const piece = bytes.subarray(at, at + 255)
    pieces.push(Buffer.from([piece.length]), piece)
  }
  return Buffer.concat(pieces)
}
