import type { GuardedAnswer, GuardedHttp } from '../network/guarded-http.ts'
import { readAll } from './blob.ts'
import { ImageError } from './driver.ts'

/** Manifests and tokens have at most a few megabytes, so a server that takes longer is stalling on purpose. */
const maxSeconds = 60

/** Reads a body that has to fit into memory. */
export async function readSmallBody(http: GuardedHttp, answer: GuardedAnswer, maxBytes: number): Promise<Buffer> {
  const slow = Object.assign(new Error(`no complete answer within ${maxSeconds} s`), { code: 'TOO_SLOW' })
  const timeout = setTimeout(() => answer.message.destroy(slow), maxSeconds * 1000)
  try {
    return await readAll(bounded(http.readBody(answer), maxBytes))
  } finally {
    clearTimeout(timeout)
  }
}

async function* bounded(source: AsyncIterable<Buffer>, maxBytes: number): AsyncGenerator<Buffer> {
  let bytes = 0
  for await (const chunk of source) {
    bytes += chunk.length
    if (bytes > maxBytes)
      throw new ImageError('too_large', `The registry answers with more than the expected ${maxBytes} bytes`)
    yield chunk
  }
}
