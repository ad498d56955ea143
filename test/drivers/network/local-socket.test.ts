import { once } from 'node:events'
import { mkdtempSync, rmSync, statSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { afterAll, afterEach, expect, test } from 'vitest'
import type { LocalSocket } from '../../../src/drivers/network/driver.ts'
import { listenBehindProxy } from '../../../src/drivers/network/local-socket.ts'

const directory = mkdtempSync(`${tmpdir()}/berth-local-`)
const path = `${directory}/api.sock`
let socket: LocalSocket | undefined

afterEach(() => socket?.close())
afterAll(() => rmSync(directory, { recursive: true, force: true }))

const open = async () => {
  socket = await listenBehindProxy(path, { mode: 0o600, maxConnections: 10 }, (request, response, from) => {
    response.end(`${request.method} ${request.url} from ${from}`)
  })
}

/** Sends the pieces one after another and returns the response. */
async function send(...pieces: string[]): Promise<string> {
  const client = connect(path)
  await once(client, 'connect')
  let received = ''
  client.on('data', (data) => {
    received += data
  })
  client.on('error', () => undefined)
  for (const piece of pieces) await new Promise((resolve) => client.write(piece, () => setImmediate(resolve)))
  await once(client, 'close')
  return received
}

const source = 'PROXY TCP6 fdaa:0:1:0:1:0:5:2 fdaa::3 5000 4280\r\n'
const request = 'GET /a HTTP/1.1\r\nconnection: close\r\n\r\n'

test('the client address is read from the PROXY header, however it is split', async () => {
  await open()
  expect(statSync(path).mode & 0o777).toBe(0o600)
  const whole = `${source}${request}`
  const answers = [
    await send(whole),
    await send(source, request),
    await send(whole.slice(0, 9), whole.slice(9, 60), whole.slice(60)),
    await send(...whole),
  ]
  for (const answer of answers) expect(answer).toMatch(/GET \/a from fdaa:0:1:0:1:0:5:2$/)
})

test('all requests of a connection have the same client address', async () => {
  await open()
  const first = 'POST /b HTTP/1.1\r\ncontent-length: 3\r\n\r\nxyz'
  const answer = await send(`${source}${first}${request}`)
  expect(answer.match(/from fdaa:0:1:0:1:0:5:2/g)).toHaveLength(2)
})

test.each([request, 'PROXY UNKNOWN\r\n', `PROXY TCP6 ${'x'.repeat(200)}`, `PROXY TCP4 127.0.0.1 x\r\n${request}`])(
  'a connection without a valid PROXY header is closed: %j',
  async (text) => {
    await open()
    expect(await send(text)).toBe('')
  },
)

test('a new server replaces the socket of the old one', async () => {
  await open()
  const old = socket!
  await open()
  expect(await send(`${source}${request}`)).toContain('from fdaa')
  await old.close()
  expect(await send(`${source}${request}`)).toContain('from fdaa')
})
