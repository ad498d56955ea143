import { readFileSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { expect, test } from 'vitest'
import { useEdgeProcess, web } from '../support/edge-process.ts'
import { until } from '../support/until.ts'

const edge = useEdgeProcess({ settings: { maxConnections: 8_000 } })

function open(count: number, onOpen: (socket: Socket) => void = () => {}): { sockets: Socket[]; answers: string[] } {
  const answers: string[] = []
  const sockets = Array.from({ length: count }, (_, index) => {
    const socket = connect(edge.port, '127.0.0.1')
    answers[index] = ''
    socket.on('data', (data) => {
      answers[index] = `${answers[index]}${data}`
    })
    socket.on('error', () => {})
    socket.on('connect', () => onOpen(socket))
    return socket
  })
  return { sockets, answers }
}

const memoryMb = (pid: number) =>
  Number(/VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]) / 1024
const workers = () => {
  const { pid } = edge.process
  return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').map(Number)
}

test('ten thousand silent connections cost little, do not delay other clients, and are closed', async () => {
  const app = await edge.app('127.0.0.9', true)
  await edge.machine(app, [web(await edge.backend((_request, reply) => reply.end('here')))])
  const host = `${app}.app.test`
  await edge.untilAnswered('here', host)
  const before = workers().map(memoryMb)
  const sockets: Socket[] = []
  for (let batch = 0; batch < 20; batch++) {
    const { sockets: more } = open(500)
    sockets.push(...more)
    await until(() => more.every((socket) => !socket.connecting))
  }
  for (let round = 0; round < 20; round++) expect((await edge.ask(host)).body).toBe('here')
  expect(sockets.filter((socket) => !socket.destroyed).length).toBeGreaterThan(5_000)
  for (const [index, pid] of workers().entries()) expect(memoryMb(pid) - before[index]!).toBeLessThan(150)
  await until(() => sockets.every((socket) => socket.destroyed || socket.readableEnded), 90)
  for (const socket of sockets) socket.destroy()
  expect((await edge.ask(host)).body).toBe('here')
})

test('clients that send their requests byte by byte get a timeout', async () => {
  const app = await edge.app('127.0.0.9', true)
  await edge.machine(app, [web(await edge.backend((_request, reply) => reply.end('here')))])
  const host = `${app}.app.test`
  await edge.untilAnswered('here', host)
  const timers: NodeJS.Timeout[] = []
  const { sockets, answers } = open(300, (socket) => {
    socket.write(`GET / HTTP/1.1\r\nHost: ${host}\r\nX-Slow: `)
    timers.push(setInterval(() => socket.writable && socket.write('a'), 300))
  })
  try {
    await until(() => sockets.every((socket) => !socket.connecting))
    for (let round = 0; round < 20; round++) expect((await edge.ask(host)).body).toBe('here')
    await until(() => answers.every((text) => text.startsWith('HTTP/1.1 408 ')), 60)
  } finally {
    for (const timer of timers) clearInterval(timer)
    for (const socket of sockets) socket.destroy()
  }
})
