// Flow control of request bodies over HTTP/2. A window has to hold what arrives in one round trip, or uploads over long
// distances are slow; but all of it may stay in memory when a program reads slowly. The window of the connection is no limit
// for that, because Node.js opens it again for what it has received, read or not.
import { constants, type ServerHttp2Session, type ServerHttp2Stream } from 'node:http2'

const minWindowBytes = 65_535
/** 4 MB in a round trip of 50 ms are 80 MB/s. */
const maxWindowBytes = 4 * 1_048_576
/** What the windows of a connection, and of all of them, add up to. */
const sessionWindowBytes = 8 * 1_048_576
const totalWindowBytes = 256 * 1_048_576
/** Clients that respect their windows stay below, also when they learn of a smaller window one round trip later. */
const maxSessionBytes = 4 * sessionWindowBytes
const maxTotalBytes = 2 * totalWindowBytes
const checkIntervalMs = 100
/** Windows grow again no sooner than this after a change, so that a changing number of uploads causes few changes. */
const growDelayMs = 1_000

interface SessionUploads {
  streams: Set<ServerHttp2Stream>
  windowBytes: number
  changedAt: number
}

export const initialWindowBytes = maxWindowBytes

/** Divides memory among the uploads of all connections. */
export class UploadWindows {
  private readonly sessions = new Map<ServerHttp2Session, SessionUploads>()
  private count = 0
  private timer: NodeJS.Timeout | undefined

  /** Called for each new connection. */
  open(session: ServerHttp2Session): void {
    session.setLocalWindowSize(sessionWindowBytes)
    this.sessions.set(session, { streams: new Set(), windowBytes: initialWindowBytes, changedAt: 0 })
    session.on('close', () => this.sessions.delete(session))
  }

  /** Called for each request with a body. */
  add(session: ServerHttp2Session, stream: ServerHttp2Stream): void {
    const uploads = this.sessions.get(session)
    if (!uploads || stream.destroyed) return
    uploads.streams.add(stream)
    this.count += 1
    stream.on('close', () => {
      uploads.streams.delete(stream)
      this.count -= 1
    })
    this.adjust(session, uploads)
    this.timer ??= setInterval(() => this.check(), checkIntervalMs)
  }

  private adjust(session: ServerHttp2Session, uploads: SessionUploads): void {
    const windowBytes = windowFor(uploads.streams.size, this.count)
    const now = performance.now()
    const isGrowing = windowBytes > uploads.windowBytes
    if (windowBytes === uploads.windowBytes || (isGrowing && now - uploads.changedAt < growDelayMs)) return
    if (session.closed || session.destroyed) return
    uploads.windowBytes = windowBytes
    uploads.changedAt = now
    session.settings({ initialWindowSize: windowBytes })
  }

  /** Ends connections whose clients send more than they may, and adapts the windows of the others. */
  private check(): void {
    const used: [ServerHttp2Session, number][] = []
    let totalBytes = 0
    for (const [session, uploads] of this.sessions) {
      const bytes = bufferedBytes(uploads)
      totalBytes += bytes
      if (bytes > maxSessionBytes) end(session)
      else used.push([session, bytes])
      this.adjust(session, uploads)
    }
    used.sort(([, one], [, other]) => other - one)
    for (const [session, bytes] of used) {
      if (totalBytes <= maxTotalBytes) break
      end(session)
      totalBytes -= bytes
    }
    if (this.count > 0) return
    clearInterval(this.timer)
    this.timer = undefined
  }
}

/** Equal shares, in steps of two, so that few changes are sent. */
function windowFor(sessionStreams: number, totalStreams: number): number {
  const share = Math.min(sessionWindowBytes / Math.max(sessionStreams, 1), totalWindowBytes / Math.max(totalStreams, 1))
  return Math.min(maxWindowBytes, Math.max(minWindowBytes, 2 ** Math.floor(Math.log2(share))))
}

function bufferedBytes({ streams }: SessionUploads): number {
  let bytes = 0
  for (const stream of streams) bytes += stream.readableLength
  return bytes
}

function end(session: ServerHttp2Session): void {
  session.destroy(undefined, constants.NGHTTP2_ENHANCE_YOUR_CALM)
}
