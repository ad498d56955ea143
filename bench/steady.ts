import { connect, type Socket } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'

export interface SteadyResult {
  /** Milliseconds from the time each request was due until its response, sorted. */
  latencies: number[]
  failed: number
}

interface Line {
  socket: Socket
  /** The time at which its request was due; undefined while the connection is free. */
  due: number | undefined
  text: string
}

const end = '\r\n\r\n'

/** Sends requests at a fixed rate, so that a slow response also delays later requests and shows in their latency. */
export async function askSteadily(
  { url, host }: { url: string; host: string },
  { rate, seconds, connections = 32 }: { rate: number; seconds: number; connections?: number },
): Promise<SteadyResult> {
  const { hostname, port } = new URL(url)
  const request = `GET / HTTP/1.1\r\nHost: ${host}\r\n\r\n`
  const result: SteadyResult = { latencies: [], failed: 0 }
  const waiting: number[] = []
  let isOver = false
  let lines: Line[] = []

  function open(): Line {
    const line: Line = { socket: connect(Number(port), hostname), due: undefined, text: '' }
    line.socket.setNoDelay(true)
    line.socket.on('data', (data) => take(line, data.toString('latin1')))
    line.socket.on('error', () => {})
    line.socket.on('close', () => {
      if (line.due !== undefined) result.failed += 1
      if (!isOver) lines = [...lines.filter((each) => each !== line), open()]
    })
    return line
  }

  function take(line: Line, data: string): void {
    line.text += data
    const head = line.text.indexOf(end)
    if (head < 0) return
    const length = Number(/content-length: (\d+)/i.exec(line.text)?.[1] ?? 0)
    if (line.text.length < head + end.length + length) return
    if (!line.text.startsWith('HTTP/1.1 200')) result.failed += 1
    result.latencies.push(performance.now() - line.due!)
    line.text = ''
    line.due = undefined
    const next = waiting.shift()
    if (next !== undefined) send(line, next)
  }

  function send(line: Line, due: number): void {
    line.due = due
    line.socket.write(request)
  }

  lines = Array.from({ length: connections }, open)
  await pause(50)
  const started = performance.now()
  for (let sent = 0; sent < rate * seconds; await pause(1)) {
    const until = Math.min(Math.floor(((performance.now() - started) / 1000) * rate), rate * seconds)
    for (; sent < until; sent++) {
      const due = started + (sent / rate) * 1000
      const line = lines.find((each) => each.due === undefined)
      if (line) send(line, due)
      else waiting.push(due)
    }
  }
  for (const deadline = performance.now() + 5_000; lines.some(({ due }) => due !== undefined); await pause(5)) {
    if (performance.now() > deadline) break
  }
  isOver = true
  result.failed += waiting.length
  for (const { socket } of lines) socket.destroy()
  result.latencies.sort((a, b) => a - b)
  return result
}

export function percentile(sorted: number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN
}
