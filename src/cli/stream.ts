// Requests whose bodies and answers are streams of any length and duration. fetch would end them by its timeouts.
import { once } from 'node:events'
import { type IncomingMessage, request as requestHttp } from 'node:http'
import { request as requestHttps } from 'node:https'
import type { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { apiError, networkError, type Session } from './client.ts'
import { CommandError } from './errors.ts'

export interface StreamRequest {
  method: string
  path: string
  /** A stream is sent as it is; any other object is sent as JSON. */
  body?: Readable | object
  accept?: string
}

/** Returns as soon as the headers of the answer arrive. Throws when the status is not a success. */
export async function openStream(session: Session, options: StreamRequest): Promise<IncomingMessage> {
  const answer = await exchange(session, options)
  const status = answer.statusCode!
  if (status >= 200 && status < 300) return answer
  throw apiError(session, status, String(Buffer.concat(await answer.toArray())))
}

async function exchange(session: Session, { method, path, body, accept }: StreamRequest): Promise<IncomingMessage> {
  const send = session.url.startsWith('https:') ? requestHttps : requestHttp
  const outgoing = send(session.url + path, {
    method,
    headers: {
      authorization: `Bearer ${session.token}`,
      ...(accept ? { accept } : {}),
      ...(body && !isReadable(body) ? { 'content-type': 'application/json' } : {}),
    },
  })
  const answered = once(outgoing, 'response') as Promise<[IncomingMessage]>
  try {
    const sent = isReadable(body) ? pipeline(body, outgoing) : void outgoing.end(body && JSON.stringify(body))
    // A platform that refuses the request stops reading the body. Its answer matters, not the write error.
    sent?.catch(() => {})
    return (await answered)[0]
  } catch (error) {
    if (isReadable(body) && body.errored) throw body.errored
    throw networkError(session, error as Error)
  }
}

function isReadable(body: Readable | object | undefined): body is Readable {
  return body !== undefined && 'pipe' in body
}

/** Yields the JSON objects of an NDJSON answer as they arrive. */
export async function* readEvents<T>(session: Session, options: StreamRequest): AsyncGenerator<T> {
  const answer = await openStream(session, { ...options, accept: 'application/x-ndjson' })
  try {
    for await (const line of readLines(answer)) if (line !== '') yield JSON.parse(line) as T
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ECONNRESET') throw error
    throw new CommandError(`the connection to ${session.url} was lost`, { cause: error })
  } finally {
    answer.destroy()
  }
}

/** Splits at `\n` only. readline also splits at U+2028 and U+2029, which JSON strings may contain. */
export async function* readLines(stream: AsyncIterable<Buffer>): AsyncGenerator<string> {
  const decoder = new TextDecoder()
  let rest = ''
  for await (const chunk of stream) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split('\n')
    rest = lines.pop()!
    yield* lines
  }
  if (rest !== '') yield rest
}
