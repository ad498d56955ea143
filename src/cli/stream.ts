// Answers and bodies of any length, which take as long as they take: without the limits that fetch has.
import { once } from 'node:events'
import { type IncomingMessage, request as requestHttp } from 'node:http'
import { request as requestHttps } from 'node:https'
import type { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { apiError, networkError, type Session } from './client.ts'
import { Failure } from './failure.ts'

export interface StreamRequest {
  method: string
  path: string
  /** A body that is sent as it is read, or one as JSON. */
  body?: Readable | object
  accept?: string
}

/** Returns as soon as the answer begins. What is refused is thrown. */
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
    // A platform that says no stops reading; what it said counts, not that.
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

/** The JSON objects of an answer that has one a line, as they come. */
export async function* readEvents<T>(session: Session, options: StreamRequest): AsyncGenerator<T> {
  const answer = await openStream(session, { ...options, accept: 'application/x-ndjson' })
  try {
    for await (const line of readLines(answer)) if (line !== '') yield JSON.parse(line) as T
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ECONNRESET') throw error
    throw new Failure(`the connection to ${session.url} was lost`, { cause: error })
  } finally {
    answer.destroy()
  }
}

/** Unlike readline, it ends a line at nothing but its end: JSON may hold other separators as they are. */
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
