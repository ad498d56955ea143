// Answers made smaller on their way to clients that understand that.
import type { Transform } from 'node:stream'
import { constants, createBrotliCompress, createGzip } from 'node:zlib'
import { chunked, type RequestHead, type ResponseHead } from './message.ts'

export type Encoding = 'br' | 'gzip'

/** What has fewer bytes fits into one packet as it is. */
const leastBytes = 1024
const compressible =
  /^(?:text\/[^;]+|(?:application|image)\/[^;]+\+(?:json|xml)|application\/(?:json|(?:x-)?(?:ndjson|javascript|yaml)|toml|xml|wasm)|font\/[ot]tf|image\/(?:bmp|x-icon))\s*(?:;|$)/i

/** How an answer goes out: its head as clients see it, and how its body is encoded; undefined: as it is. */
export interface Outgoing {
  head: ResponseHead
  encoding: Encoding | undefined
}

export function chooseEncoding(request: Pick<RequestHead, 'fields'>, response: ResponseHead): Outgoing {
  if (!isCompressible(response)) return { head: response, encoding: undefined }
  // Caches on the way have to know this also of answers that stay as they are.
  const head = { ...response, fields: variedFields(response.fields) }
  const encoding = acceptedEncoding(request)
  return { head: encoding ? encodedHead(head, encoding) : head, encoding }
}

/** Whether it would become smaller, and may be changed. A part of an answer is a part of its bytes as they are. */
function isCompressible({ status, body, fields }: ResponseHead): boolean {
  if (status === 206 || (body >= 0 && body < leastBytes)) return false
  let fits = false
  for (let index = 1; index < fields.length; index += 3) {
    const value = fields[index + 1]!
    if (fields[index] === 'content-type') fits = compressible.test(value)
    else if (fields[index] === 'content-encoding') return false
    else if (fields[index] === 'cache-control' && /\bno-transform\b/i.test(value)) return false
  }
  return fits
}

const accepted = /^\s*([^\s;]+)\s*(?:;\s*q=([\d.]+))?/

/** What the client likes best; of equals the one that makes more of it. */
function acceptedEncoding({ fields }: Pick<RequestHead, 'fields'>): Encoding | undefined {
  const weights = new Map<string, number>()
  for (let index = 1; index < fields.length; index += 3) {
    if (fields[index] !== 'accept-encoding') continue
    for (const part of fields[index + 1]!.toLowerCase().split(',')) {
      const found = accepted.exec(part)
      if (found) weights.set(found[1]!, Number(found[2] ?? 1))
    }
  }
  const others = weights.get('*') ?? 0
  const [br, gzip] = [weights.get('br') ?? others, weights.get('gzip') ?? others]
  if (!(Math.max(br, gzip) > 0) || Math.max(br, gzip) < (weights.get('identity') ?? 0)) return undefined
  return br >= gzip ? 'br' : 'gzip'
}

function variedFields(fields: string[]): string[] {
  for (let index = 1; index < fields.length; index += 3) {
    if (fields[index] === 'vary' && /\*|\baccept-encoding\b/i.test(fields[index + 1]!)) return fields
  }
  return [...fields, 'Vary', 'vary', 'Accept-Encoding']
}

function encodedHead(head: ResponseHead, encoding: Encoding): ResponseHead {
  const fields = ['Content-Encoding', 'content-encoding', encoding]
  for (let index = 0; index < head.fields.length; index += 3) {
    const [name, lower, value] = head.fields.slice(index, index + 3) as [string, string, string]
    if (lower === 'accept-ranges') continue
    // Other bytes under the same tag are the same answer only in the weak sense.
    fields.push(name, lower, lower === 'etag' && value.startsWith('"') ? `W/${value}` : value)
  }
  return { ...head, fields, body: chunked }
}

export interface EncoderUser {
  /** False: it wants no more for now. */
  onEncoded(bytes: Buffer): boolean
  /** More can be written. */
  onEncoderDrain(): void
  onEncoderError(): void
}

/** The encoders of all answers together: each takes up to half a megabyte. */
export interface EncoderCount {
  open: number
  most: number
}

/** Encodes a body as it passes. Each piece goes out as it comes, so that nobody waits for the rest of a stream. */
export class Encoder {
  private readonly stream: Transform

  constructor(encoding: Encoding, count: EncoderCount, user: EncoderUser) {
    const stream = openStream(encoding)
    this.stream = stream
    count.open += 1
    stream.on('data', (bytes: Buffer) => {
      if (!user.onEncoded(bytes)) stream.pause()
    })
    stream.on('drain', () => user.onEncoderDrain())
    stream.on('error', () => user.onEncoderError())
    stream.on('close', () => {
      count.open -= 1
    })
  }

  /** False: no more, until it says so. */
  write(bytes: Buffer): boolean {
    return this.stream.write(bytes)
  }

  resume(): void {
    this.stream.resume()
  }

  /** `done` is called when everything has gone out. */
  end(done: () => void): void {
    this.stream.once('end', done)
    this.stream.end()
  }

  destroy(): void {
    this.stream.destroy()
  }
}

// As fast as gzip, and smaller. By default it takes many times as long, and megabytes for each stream.
const brotliQuality = 4
const brotliWindowBits = 18

function openStream(encoding: Encoding): Transform {
  if (encoding === 'gzip') return createGzip({ flush: constants.Z_SYNC_FLUSH })
  return createBrotliCompress({
    flush: constants.BROTLI_OPERATION_FLUSH,
    params: {
      [constants.BROTLI_PARAM_QUALITY]: brotliQuality,
      [constants.BROTLI_PARAM_LGWIN]: brotliWindowBits,
    },
  })
}
