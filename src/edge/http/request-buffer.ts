import { BadMessage } from './message.ts'

const endOfHead = Buffer.from('\r\n\r\n')
const lineFeed = 10
const carriageReturn = 13
const maxHeadBytes = 32_768
const hostLine = /\r\nhost:[\t ]*([^\t\r\n :]+)(?::\d+)?[\t ]*\r\n/i

/** The bytes of a client that no exchange has taken yet. */
export class RequestBuffer {
  private bytes: Buffer | undefined

  get isEmpty(): boolean {
    return this.bytes === undefined
  }

  append(bytes: Buffer): void {
    this.bytes = this.bytes ? Buffer.concat([this.bytes, bytes]) : bytes
  }

  take(): Buffer | undefined {
    const { bytes } = this
    this.bytes = undefined
    return bytes
  }

  /** Removes the head of the next request. Undefined while it is incomplete; throws if it can no longer become valid. */
  takeHead(): string | undefined {
    const { bytes } = this
    if (!bytes) return undefined
    let start = 0
    // Some clients send an empty line after a body.
    while (bytes[start] === carriageReturn && bytes[start + 1] === lineFeed) start += 2
    const end = bytes.indexOf(endOfHead, start)
    if (end < 0 || end - start > maxHeadBytes) {
      checkPartialHead(bytes, start)
      return undefined
    }
    this.bytes = end + endOfHead.length < bytes.length ? bytes.subarray(end + endOfHead.length) : undefined
    return bytes.toString('latin1', start, end)
  }

  /** The host in a head that is still incomplete. */
  peekHost(): string | undefined {
    return this.bytes && hostLine.exec(this.bytes.toString('latin1'))?.[1]?.toLowerCase()
  }
}

function checkPartialHead(bytes: Buffer, start: number): void {
  if (bytes.length - start > maxHeadBytes) {
    throw new BadMessage(`the head of a request is limited to ${maxHeadBytes} bytes`, 431)
  }
  if (hasBareLineFeed(bytes)) throw new BadMessage('lines must end with a carriage return and a line feed')
}

/** With bare line feeds, the end of the head would never be found. */
function hasBareLineFeed(bytes: Buffer): boolean {
  for (let at = bytes.indexOf(lineFeed); at >= 0; at = bytes.indexOf(lineFeed, at + 1)) {
    if (bytes[at - 1] !== carriageReturn) return true
  }
  return false
}
