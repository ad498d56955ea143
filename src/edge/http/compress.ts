// Compression of responses for clients that accept it.
import type { Transform } from 'node:stream'
import { constants, createBrotliCompress, createGzip } from 'node:zlib'
import { chunked, type RequestHead, type ResponseHead } from './message.ts'

export type Encoding = 'br' | 'gzip'

/** Smaller responses fit into one packet uncompressed. */
const minBytes = 1024
const compressible =
  /^(?:text\/[^;]+|(?:application|image)\/[^;]+\+(?:json|xml)|application\/(?:json|(?:x-)?(?:ndjson|javascript|yaml)|toml|xml|wasm)|font\/[ot]tf|image\/(?:bmp|x-icon))[\t ]*(?:;|$)/i

/** A response as the client gets it. */
export interface Outgoing {
  head: ResponseHead
  /** Undefined when the body is not compressed. */
  encoding: Encoding | undefined
}

export function chooseEncoding(request: Pick<RequestHead, 'fields'>, response: ResponseHead): Outgoing {
  if (!isCompressible(response)) return { head: response, encoding: undefined }
  // Caches need the Vary field also when the response is not compressed for this client.
  const head = { ...response, fields: variedFields(response.fields) }
  const encoding = acceptedEncoding(request)
  return { head: encoding ? encodedHead(head, encoding) : head, encoding }
}

/** Partial content (206) is excluded, because its range refers to the uncompressed bytes. */
function isCompressible({ status, body, fields }: ResponseHead): boolean {
  if (status === 206 || (body >= 0 && body < minBytes)) return false
  let isTypeCompressible = false
  for (let index = 1; index < fields.length; index += 3) {
    const value = fields[index + 1]!
    if (fields[index] === 'content-type') isTypeCompressible = compressible.test(value)
    else if (fields[index] === 'content-encoding') return false
    else if (fields[index] === 'cache-control' && /\bno-transform\b/i.test(value)) return false
  }
  return isTypeCompressible
}

const accepted = /^[\t ]*([^\t ;]+)[\t ]*(?:;[\t ]*q=([01](?:\.\d{0,3})?)[\t ]*$)?/

/** The encoding that the client prefers; Brotli wins a tie because it compresses better. */
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
    // The compressed body differs in bytes, so its entity tag can only be weak.
    fields.push(name, lower, lower === 'etag' && value.startsWith('"') ? `W/${value}` : value)
  }
  return { ...head, fields, body: chunked }
}

export interface EncoderUser {
  /** Returns false to pause the output. */
  onEncoded(bytes: Buffer): boolean
  onEncoderDrain(): void
  onEncoderError(): void
}

/** Limits the encoders of all responses together, as each takes up to half a megabyte. */
export interface EncoderLimit {
  open: number
  max: number
}

/** Compresses a body. Each piece is flushed at once, so that streamed responses are not delayed. */
export class Encoder {
  private readonly stream: Transform

  constructor(encoding: Encoding, limit: EncoderLimit, user: EncoderUser) {
    const stream = openStream(encoding)
    this.stream = stream
    limit.open += 1
    stream.on('data', (bytes: Buffer) => {
      if (!user.onEncoded(bytes)) stream.pause()
    })
    stream.on('drain', () => user.onEncoderDrain())
    stream.on('error', () => user.onEncoderError())
    stream.on('close', () => {
      limit.open -= 1
    })
  }

  /** Returns false when the caller should wait for `onEncoderDrain`. */
  write(bytes: Buffer): boolean {
    return this.stream.write(bytes)
  }

  resume(): void {
    this.stream.resume()
  }

  /** Calls `done` when all output has been passed on. */
  end(done: () => void): void {
    this.stream.once('end', done)
    this.stream.end()
  }

  destroy(): void {
    this.stream.destroy()
  }
}

// As fast as gzip, with smaller output. The defaults are many times slower and take megabytes per stream.
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
