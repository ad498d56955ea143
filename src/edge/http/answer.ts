// Responses that the edge creates itself.
import { Refusal } from '../refusal.ts'
import type { BadMessage } from './message.ts'

const reasons: Record<number, string> = {
  200: 'OK',
  301: 'Moved Permanently',
  400: 'Bad Request',
  401: 'Unauthorized',
  403: 'Forbidden',
  404: 'Not Found',
  405: 'Method Not Allowed',
  408: 'Request Timeout',
  421: 'Misdirected Request',
  431: 'Request Header Fields Too Large',
  501: 'Not Implemented',
  502: 'Bad Gateway',
  503: 'Service Unavailable',
  505: 'HTTP Version Not Supported',
}

const codes: Record<number, string> = {
  400: 'bad_request',
  405: 'method_not_allowed',
  408: 'timeout',
  431: 'too_large',
  501: 'not_implemented',
  505: 'version_not_supported',
}

export function refuseMessage({ status, message }: BadMessage): Refusal {
  return new Refusal(status, codes[status] ?? 'bad_request', message)
}

export interface AnswerOptions {
  id: string
  keepAlive: boolean
  /** The response to a HEAD request. */
  withoutBody: boolean
}

export function refusalText({ status, code, message, fields }: Refusal, options: AnswerOptions): string {
  return answerText(status, { error: code, message }, fields, options)
}

export function answerText(status: number, body: object, fields: string, options: AnswerOptions): string {
  const text = `${JSON.stringify(body)}\n`
  const connection = options.keepAlive ? '' : 'Connection: close\r\n'
  const retry = status === 503 ? 'Retry-After: 1\r\n' : ''
  return `HTTP/1.1 ${status} ${reasons[status] ?? 'Error'}\r
Content-Type: application/json\r
Content-Length: ${Buffer.byteLength(text)}\r
Cache-Control: no-store\r
Date: ${new Date().toUTCString()}\r
Fly-Request-Id: ${options.id}\r
${fields}${retry}${connection}\r
${options.withoutBody ? '' : text}`
}
