import type { Upstream } from '../tcp/upstream.ts'

const timeoutMs = 2_000
/**
 * The connection stays open this long after the check. A target loses its readiness with its last connection, and waiting
 * requests connect within this time.
 */
const lingerMs = 100
const minStatusLineBytes = 12

/** Sends a GET request, and returns true if the status is 2xx or 3xx. */
export function isHealthy(upstream: Upstream, host: string, path: string): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>()
  const { socket } = upstream
  let text = ''
  const timer = setTimeout(() => resolve(false), timeoutMs)
  upstream.user = {
    onUpstreamData(bytes) {
      text += bytes.toString('latin1', 0, 64)
      if (text.length >= minStatusLineBytes) resolve(/^HTTP\/1\.[01] [23]/.test(text))
    },
    onUpstreamEnd: () => resolve(false),
    onUpstreamDrain() {},
    onUpstreamClose: () => resolve(false),
  }
  socket.write(`GET ${path} HTTP/1.1\r\nHost: ${host}\r\nUser-Agent: berth-edge\r\nConnection: close\r\n\r\n`)
  return promise.finally(() => {
    clearTimeout(timer)
    setTimeout(() => socket.destroy(), lingerMs).unref()
  })
}
