// Errors on connections for which the HTTP server has no response object: bytes that are not a request, and upgrades.
import { STATUS_CODES } from 'node:http'
import type { Duplex } from 'node:stream'
import type { BerthError } from '../../model/errors.ts'
import { commonHeaders } from './options.ts'
import { type Area, problemBody, problemHeaders } from './problem.ts'

/** A client that is still sending gets this long to read the error. Closing at once would reset the connection. */
const lingerMs = 1_000

/** Sends an error as the only response of a connection, and closes the connection. */
export function refuseConnection(area: Area, connection: Duplex, id: string, error: BerthError): void {
  const body = JSON.stringify(problemBody(area, error))
  const headers = {
    ...problemHeaders(error),
    ...commonHeaders(area, id),
    'content-type': 'application/json',
    'content-length': String(Buffer.byteLength(body)),
    connection: 'close',
  }
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`)
  connection.end(`HTTP/1.1 ${error.statusCode} ${STATUS_CODES[error.statusCode]}\r\n${lines.join('')}\r\n${body}`)
  connection.resume()
  const timer = setTimeout(() => connection.destroy(), lingerMs)
  connection.once('close', () => clearTimeout(timer))
}
