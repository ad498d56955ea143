import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { PassThrough } from 'node:stream'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type WebSocket, WebSocketServer } from 'ws'
import type { Session } from '../client.ts'
import type { Streams } from './find.ts'
import { type Outcome, runSession } from './session.ts'

let server: Server
let session: Session
let serve: (socket: WebSocket) => void
let input: PassThrough & { isTTY?: boolean; setRawMode?: (on: boolean) => void }
let output: PassThrough & { isTTY?: boolean; columns?: number; rows?: number }
let errors: PassThrough
let received: (string | Buffer)[]

beforeEach(async () => {
  server = createServer((_, answer) => answer.writeHead(404).end('{"error":"not_found","message":"sandbox not found"}'))
  const sockets = new WebSocketServer({ noServer: true })
  server.on('upgrade', (request, connection, head) => {
    expect(request.headers.authorization).toBe('Bearer berth_x')
    if (request.url?.startsWith('/refused')) {
      const body = '{"error":"forbidden","message":"the token may only read"}'
      return connection.end(`HTTP/1.1 403 Forbidden\r\ncontent-length: ${body.length}\r\n\r\n${body}`)
    }
    sockets.handleUpgrade(request, connection, head, (socket) => {
      socket.on('message', (data: Buffer, isBinary) => received.push(isBinary ? data : String(data)))
      serve(socket)
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  session = { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, token: 'berth_x' }
  received = []
  input = new PassThrough()
  output = new PassThrough()
  errors = new PassThrough()
})

afterEach(() => {
  server.closeAllConnections()
  server.close()
})

function run(takesInput = true, canDetach = true): Promise<Outcome> {
  return runSession(session, '/exec', {
    streams: { input, output, errors } as Streams,
    takesInput,
    canDetach,
  })
}

const begin = (socket: WebSocket, tty: boolean) =>
  socket.send(JSON.stringify({ type: 'session_info', session_id: '7', tty }))

function finish(socket: WebSocket, code: number, tty = false): void {
  socket.send(JSON.stringify({ type: 'exit', exit_code: code }))
  if (!tty) socket.send(Buffer.from([3, code]))
  socket.close(1000)
}

const frame = (stream: number, text: string) => Buffer.concat([Buffer.from([stream]), Buffer.from(text)])
const inputSeen = () => Buffer.concat(received.filter((each) => typeof each !== 'string')).toString('latin1')

describe('a command without a terminal', () => {
  test('keeps output, errors and exit code separate', async () => {
    serve = (socket) => {
      begin(socket, false)
      socket.send(frame(1, 'out'))
      socket.send(frame(2, 'err'))
      socket.send(JSON.stringify({ type: 'keepalive' }))
      finish(socket, 7)
    }
    expect(await run(false)).toEqual({ is: 'ended', code: 7, hasSentInput: false })
    expect([String(output.read()), String(errors.read())]).toEqual(['out', 'err'])
  })

  test('reads piped input to its end', async () => {
    serve = (socket) => {
      begin(socket, false)
      socket.on('message', (data: Buffer) => {
        if (data[0] === 4) finish(socket, 0)
      })
    }
    input.end('some\0bytes')
    expect(await run()).toMatchObject({ is: 'ended', code: 0, hasSentInput: true })
    expect(inputSeen()).toBe('\0some\0bytes\u0004')
  })

  test('receives the signals of this process until it ends', async () => {
    const before = process.listenerCount('SIGINT')
    serve = (socket) => {
      begin(socket, false)
      socket.on('message', (data, isBinary) => {
        if (!isBinary && JSON.parse(String(data)).signal === 'SIGINT') finish(socket, 130)
      })
    }
    const ended = run(false)
    while (process.listenerCount('SIGINT') === before) await new Promise((resolve) => setImmediate(resolve))
    process.kill(process.pid, 'SIGINT')
    expect(await ended).toMatchObject({ code: 130 })
    expect(process.listenerCount('SIGINT')).toBe(before)
  })

  test('pauses while its output is not read', async () => {
    const all = 6 * 1024 * 1024
    let sentAll = false
    serve = (socket) => {
      begin(socket, false)
      for (let sent = 0; sent < all; sent += 65_536) socket.send(frame(1, 'x'.repeat(65_536)))
      socket.send(Buffer.from([3, 0]), () => {
        sentAll = true
        socket.close(1000)
      })
    }
    const ended = run(false)
    await new Promise<void>((resolve) => output.once('readable', resolve))
    expect(sentAll).toBe(false)
    let length = 0
    output.on('data', (data) => {
      length += data.length
    })
    expect(await ended).toMatchObject({ code: 0 })
    expect(length).toBe(all)
  })
})

describe('a command at a terminal', () => {
  let raw: boolean[]

  beforeEach(() => {
    raw = []
    input.isTTY = true
    input.setRawMode = (on) => raw.push(on)
    output.isTTY = true
    output.columns = 100
    output.rows = 30
  })

  test('receives raw keys and the terminal size, and restores the terminal', async () => {
    serve = (socket) => {
      begin(socket, true)
      socket.send(Buffer.from('prompt \u001b[?1049h'))
      socket.on('message', (data, isBinary) => {
        if (isBinary && String(data).includes('\u0003')) finish(socket, 130, true)
      })
    }
    input.write('ls\u0003')
    expect(await run()).toMatchObject({ is: 'ended', code: 130 })
    expect(received).toContain('{"type":"resize","cols":100,"rows":30}')
    expect(inputSeen()).toBe('ls\u0003')
    expect(raw).toEqual([true, false])
    expect(String(output.read())).toMatch(/^prompt .*\?1049l/)
  })

  test('is told when the size changes', async () => {
    serve = (socket) => {
      begin(socket, true)
      socket.on('message', (data) => {
        const { cols } = JSON.parse(String(data))
        if (cols === 100) {
          output.columns = 55
          output.emit('resize')
        } else finish(socket, 0, true)
      })
    }
    expect(await run()).toMatchObject({ code: 0 })
    expect(received.at(-1)).toBe('{"type":"resize","cols":55,"rows":30}')
  })

  test.each(['\u001c', '\u001b[92;5u'])('is left with %j, unless that is for the command', async (key) => {
    serve = (socket) => begin(socket, true)
    input.write(key)
    expect(await run()).toEqual({ is: 'detached', id: '7' })
    expect(raw).toEqual([true, false])

    serve = (socket) => {
      begin(socket, true)
      socket.on('message', (_, isBinary) => isBinary && finish(socket, 0, true))
    }
    input.write(key)
    expect(await run(true, false)).toMatchObject({ is: 'ended' })
  })

  test('is left when this process is told to end', async () => {
    serve = (socket) => {
      begin(socket, true)
      socket.once('message', () => process.kill(process.pid, 'SIGTERM'))
    }
    expect(await run()).toEqual({ is: 'detached', id: '7', signal: 'SIGTERM' })
  })

  test('is put back also when the connection is lost, and says so', async () => {
    serve = (socket) => {
      begin(socket, true)
      socket.once('message', () => socket.terminate())
    }
    await expect(run()).rejects.toThrow('the connection was lost; session 7 continues')
    expect(raw).toEqual([true, false])
  })
})

describe('what is refused', () => {
  test('is said in the words of the platform', async () => {
    const streams = { input, output, errors } as Streams
    const joined = { streams, takesInput: false, canDetach: false }
    await expect(runSession(session, '/refused', joined)).rejects.toMatchObject({
      status: 403,
      message: 'the token may only read',
    })
  })

  test('is a platform that is not there', async () => {
    await new Promise((resolve) => server.close(resolve))
    await expect(run()).rejects.toThrow(`no platform answers at ${session.url}`)
  })
})
