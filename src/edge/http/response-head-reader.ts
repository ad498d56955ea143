import { BadMessage, type ResponseHead, readResponseHead } from './message.ts'
import type { ResponseSink } from './response-sink.ts'

const endOfHead = Buffer.from('\r\n\r\n')
const maxHeadBytes = 65_536

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
    const end = bytes.indexOf(endOfHead)
    if (end < 0 && bytes.length < maxHeadBytes) {
      this.received = bytes
      return
    }
    if (end < 0 || end > maxHeadBytes) throw new BadMessage('the response head is too large')
    const head = readResponseHead(bytes.toString('latin1', 0, end), this.hasBody)
    this.received = undefined
    this.onHead(head, bytes.subarray(end + 4))
  }

  end(): boolean {
    return false
  }
}
