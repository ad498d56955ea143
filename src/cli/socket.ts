// WebSocket connections to the platform. Node's own WebSocket client cannot send an Authorization header.
import type { IncomingMessage } from 'node:http'
import { type RawData, WebSocket } from 'ws'
import { apiError, networkError, type Session } from './client.ts'

export type OnMessage = (data: Buffer, isBinary: boolean, socket: WebSocket) => void

/**
 * Opens a connection. If the platform refuses it, the promise rejects with the platform's error message. The first
 * message may arrive together with the end of the handshake, so the handler is passed in here.
 */
export function openSocket(session: Session, path: string, onMessage: OnMessage): Promise<WebSocket> {
  const socket = new WebSocket(session.url.replace(/^http/, 'ws') + path, {
    headers: { authorization: `Bearer ${session.token}` },
    perMessageDeflate: false,
  })
  socket.on('message', (data, isBinary) => onMessage(bytesOf(data), isBinary, socket))
  return new Promise((resolve, reject) => {
    // After the handshake this has no effect: a broken connection is also closed, which waitForClose reports.
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
    return error as Error // the answer did not come from a platform
  }
}

/** Resolves when the data has left this process. Callers that wait for it do not fill up memory. */
export function sendFlushed(socket: WebSocket, data: Buffer | string): Promise<void> {
  return new Promise((resolve) => {
    // A failure to send also closes the connection, which waitForClose reports.
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
