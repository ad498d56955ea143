import { createHash } from 'node:crypto'
import { promisify } from 'node:util'
import { brotliCompress, constants, gzip } from 'node:zlib'
import type { FastifyReply, FastifyRequest } from 'fastify'

type Encoding = 'br' | 'gzip' | 'identity'

interface Encoded {
  etag: string
  headers: Record<string, string>
  bodies: Record<Encoding, Buffer>
}

/** Nearly as small as the highest quality, which takes twenty times as long. */
const brotliQuality = 9

/**
 * Serves a text that does not change while the process runs. It is rendered and compressed on the first request, and
 * not sent again to clients that have it.
 */
export function staticPage(type: string, headers: () => Record<string, string>, render: () => string) {
  let encoded: Promise<Encoded> | undefined
  return async (request: FastifyRequest, reply: FastifyReply) => {
    encoded ??= encode(render(), headers())
    const { etag, headers: own, bodies } = await encoded
    const encoding = chooseEncoding(request.headers['accept-encoding'])
    const tag = `"${etag}-${encoding}"`
    reply.headers({ ...own, etag: tag, vary: 'accept-encoding', 'cache-control': 'no-cache' })
    if (isKnown(request.headers['if-none-match'], tag)) return reply.code(304).send()
    if (encoding !== 'identity') reply.header('content-encoding', encoding)
    return reply.type(type).send(bodies[encoding])
  }
}

async function encode(text: string, headers: Record<string, string>): Promise<Encoded> {
  const identity = Buffer.from(text)
  const params = {
    [constants.BROTLI_PARAM_QUALITY]: brotliQuality,
    [constants.BROTLI_PARAM_SIZE_HINT]: identity.length,
  }
  const [br, gzipped] = await Promise.all([
    promisify(brotliCompress)(identity, { params }),
    promisify(gzip)(identity, { level: 9 }),
  ])
  const etag = createHash('sha256').update(identity).digest('base64url').slice(0, 22)
  return { etag, headers, bodies: { identity, br, gzip: gzipped } }
}

/** Prefers Brotli to gzip. An encoding counts as accepted unless its weight is 0. */
export function chooseEncoding(header: string | string[] | undefined): Encoding {
  const accepted = String(header ?? '')
    .split(',')
    .map((part) => /^\s*([\w*-]+)\s*(?:;\s*q\s*=\s*([\d.]+)\s*)?$/i.exec(part))
    .filter((match) => match !== null && Number(match[2] ?? 1) > 0)
    .map((match) => match![1]!.toLowerCase())
  return accepted.includes('br') ? 'br' : accepted.includes('gzip') ? 'gzip' : 'identity'
}

function isKnown(header: string | undefined, tag: string): boolean {
  return header?.split(',').some((one) => ['*', tag, `W/${tag}`].includes(one.trim())) === true
}
