// WebSockets of the platform. The client that Node has itself cannot send a token.
import type { IncomingMessage } from 'node:http'
import { type RawData, WebSocket } from 'ws'
import { apiError, networkError, type Session } from './client.ts'

export type OnMessage = (data: Buffer, isBinary: boolean, socket: WebSocket) => void

/**
 * An open connection. What is refused is thrown, with the sentence of the platform. The first message may come together
 * with the end of the handshake, so who takes them is said before.
 */
export function openSocket(session: Session, path: string, onMessage: OnMessage): Promise<WebSocket> {
  const socket = new WebSocket(session.url.replace(/^http/, 'ws') + path, {
    headers: { authorization: `Bearer ${session.token}` },
    perMessageDeflate: false,
  })
  socket.on('message', (data, isBinary) => onMessage(bytesOf(data), isBinary, socket))
  return new Promise((resolve, reject) => {
    // After the handshake it says nothing any more: a connection that breaks is closed next, and that is dealt with.
    const fail = (error: Error) => reject(networkError(session, error))
    socket.on('error', fail)
    socket.once('open', () => resolve(socket))
    socket.once('unexpected-response', (_, answer: IncomingMessage) => {
      answer.toArray().then((chunks) => {
        reject(readApiError(session, answer.statusCode!, String(Buffer.concat(chunks))))
        socket.terminate()
      }, fail)
    })
  })
}

function readApiError(session: Session, status: number, text: string): Error {
  try {
    return apiError(session, status, text)
  } catch (error) {
    return error as Error // what answers is no platform
  }
}

/** Resolves when it has left this process, so that whoever sends no faster than that piles nothing up. */
export function sendFlushed(socket: WebSocket, data: Buffer | string): Promise<void> {
  return new Promise((resolve) => {
    // That it cannot be sent is seen where the connection is closed.
    socket.send(data, () => resolve())
  })
}

export interface CloseInfo {
  code: number
  reason: string
}

export function waitForClose(socket: WebSocket): Promise<CloseInfo> {
  return new Promise((resolve) => {
    socket.once('close', (code, reason) => resolve({ code, reason: String(reason) }))
  })
}

function bytesOf(data: RawData): Buffer {
  if (Buffer.isBuffer(data)) return data
  return Array.isArray(data) ? Buffer.concat(data) : Buffer.from(data)
}
