import type { IncomingHttpHeaders } from 'node:http'
import type { IncomingHttpHeaders as IncomingHttp2Headers } from 'node:http2'

const hopByHop = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
  'te',
])

/** The headers to copy between HTTP/1 and HTTP/2: all except hop-by-hop and pseudo headers. */
export function forwardedHeaders(
  headers: IncomingHttpHeaders | IncomingHttp2Headers,
): Record<string, string | string[]> {
  const kept: Record<string, string | string[]> = {}
  for (const [name, value] of Object.entries(headers)) {
    if (!name.startsWith(':') && !hopByHop.has(name) && value !== undefined) kept[name] = value
  }
  return kept
}
