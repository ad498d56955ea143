import { BadMessage, type ResponseHead, readResponseHead } from './message.ts'
import type { ResponseSink } from './response-sink.ts'

const maxHeadBytes = 65_536
const carriageReturn = 0x0d

/** Waits for the head of a response. */
export class ResponseHeadReader implements ResponseSink {
  readonly isVisible = false
  /** The upstream has not sent anything, so the request can be sent again if it is repeatable. */
  isUntouched = true
  private readonly hasBody: boolean
  private readonly onHead: (head: ResponseHead, rest: Buffer) => void
  private received: Buffer | undefined

  /** `hasBody` is false for HEAD requests. `onHead` is called for each interim response and for the final one. */
  constructor(hasBody: boolean, onHead: (head: ResponseHead, rest: Buffer) => void) {
    this.hasBody = hasBody
    this.onHead = onHead
  }

  take(chunk: Buffer): void {
    this.isUntouched = false
    const bytes = this.received ? Buffer.concat([this.received, chunk]) : chunk
    const end = findEnd(bytes)
    if (!end && bytes.length < maxHeadBytes) {
      this.received = bytes
      return
    }
    if (!end || end.head > maxHeadBytes) throw new BadMessage('the response head is too large')
    const head = readResponseHead(bytes.toString('latin1', 0, end.head), this.hasBody)
    this.received = undefined
    this.onHead(head, bytes.subarray(end.body))
  }

  end(): boolean {
    return false
  }
}

/** Finds the empty line after a head, whose lines end with CRLF or with LF alone. */
function findEnd(bytes: Buffer): { head: number; body: number } | undefined {
  const crlf = bytes.indexOf('\n\r\n')
  const lf = (crlf < 0 ? bytes : bytes.subarray(0, crlf)).indexOf('\n\n')
  const last = lf < 0 ? crlf : lf
  if (last < 0) return undefined
  return { head: bytes[last - 1] === carriageReturn ? last - 1 : last, body: last + (lf < 0 ? 3 : 2) }
}
