// What happens below the operations: framing, upgrades, slow clients. Requests are written byte by byte.
import { type AddressInfo, connect, type Socket } from 'node:net'
import { afterEach, beforeAll, describe, expect, test } from 'vitest'
import { platformRoutes, sandboxRoutes } from '../../../src/api/routes.ts'
import { usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const headTimeoutMs = 700
const platform = usePlatform({ headTimeoutMs })
const opened: Socket[] = []
let ports: Record<'platform' | 'sandbox', number>

beforeAll(async () => {
  const listen = async (server: typeof platform.server) => {
    await server.listen({ host: '127.0.0.1', port: 0 })
    return (server.server.address() as AddressInfo).port
  }
  ports = { platform: await listen(platform.server), sandbox: await listen(platform.sandboxServer) }
})

afterEach(() => {
  for (const socket of opened.splice(0)) socket.destroy()
})

interface Answer {
  status: number
  headers: Record<string, string>
  body: ReturnType<typeof JSON.parse>
}

class Connection {
  readonly socket: Socket
  text = ''
  isClosed = false

  constructor(area: keyof typeof ports) {
    this.socket = connect(ports[area], '127.0.0.1')
    opened.push(this.socket)
    this.socket.on('data', (data) => {
      this.text += data
    })
    this.socket.on('error', () => {})
    this.socket.on('close', () => {
      this.isClosed = true
    })
  }

  write(text: string): this {
    this.socket.write(text, 'latin1')
    return this
  }

  /** The n-th response; its body must have a Content-Length. */
  async answer(index = 0): Promise<Answer> {
    await until(() => this.answers().length > index)
    return this.answers()[index]!
  }

  answers(): Answer[] {
    const found: Answer[] = []
    for (let rest = this.text; rest !== ''; ) {
      const end = rest.indexOf('\r\n\r\n')
      if (end < 0) break
      const [first, ...lines] = rest.slice(0, end).split('\r\n')
      const headers = Object.fromEntries(
        lines.map((line) => [line.slice(0, line.indexOf(':')).toLowerCase(), line.slice(line.indexOf(':') + 2)]),
      )
      const length = Number(headers['content-length'] ?? 0)
      const body = rest.slice(end + 4, end + 4 + length)
      if (body.length < length) break
      found.push({ status: Number(first!.split(' ')[1]), headers, body: body === '' ? undefined : JSON.parse(body) })
      rest = rest.slice(end + 4 + length)
    }
    return found
  }
}

const send = (text: string, area: keyof typeof ports = 'platform') => new Connection(area).write(text).answer()
const authorized = () => `Host: x\r\nAuthorization: Bearer ${platform.rootToken}\r\n`

const messages = {
  platform: { error: expect.any(String) },
  sandbox: { error: expect.any(String), message: expect.any(String) },
}

describe.each(['platform', 'sandbox'] as const)('the %s API', (area) => {
  test.each([
    ['an unknown method without a path', 'FOO\r\n\r\n', 400],
    ['bytes that are not text', '\u0000\u0001\u0002\r\n\r\n', 400],
    ['a malformed header', 'GET /v1/apps HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n', 400],
    [
      'two ways of framing',
      'POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n',
      400,
    ],
    ['no Host', 'GET /v1/x HTTP/1.1\r\n\r\n', 400],
    ['two Host headers', 'GET /healthz HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n', 400],
    ['two Authorization headers', 'GET /v1/x HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nAuthorization: a\r\n\r\n', 400],
    ['large headers', `GET /v1/x HTTP/1.1\r\nHost: x\r\nX-Large: ${'x'.repeat(600_000)}\r\n\r\n`, 431],
    ['an invalid chunk', 'POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n', 400],
    ['an incomplete head', 'GET /v1/x HTTP/1.1\r\nHost: x\r\nX-Slow: ', 408],
    ['a path that cannot be decoded', 'GET /v1/%zz HTTP/1.1\r\nHost: x\r\n\r\n', 401],
    ['an unknown path and no token', 'GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n', 401],
    ['an unknown token', 'GET /v1/nothing HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer berth_no\r\n\r\n', 401],
    ['an unusual method and no token', 'PROPFIND /v1/x HTTP/1.1\r\nHost: x\r\n\r\n', 401],
    ['a tunnel', 'CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n', 404],
    ['an unknown method for an unknown path', 'FOO /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n', 404],
  ])('refuses %s in the documented format, with a request id', async (_name, text, status) => {
    const answer = await send(text, area)
    expect(answer.status).toBe(status)
    expect(answer.body).toEqual(messages[area])
    expect(answer.headers['fly-request-id']).toMatch(/^[0-9a-f-]{36}$/)
    expect(answer.headers['content-type']).toMatch(/^application\/json/)
    if (area === 'sandbox') expect(answer.headers['sprite-version']).toBeDefined()
  })

  test('closes the connection of a client that sends something else and does not close it itself', async () => {
    const connection = new Connection(area).write('nonsense\r\n\r\n')
    expect((await connection.answer()).status).toBe(400)
    await until(() => connection.isClosed)
    expect(connection.answers()).toHaveLength(1)
  })

  test('gives every request on a connection the same time for its head', async () => {
    const connection = new Connection(area).write('GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n')
    expect((await connection.answer()).status).toBe(200)
    connection.write('GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ')
    const timer = setInterval(() => connection.write('a'), 50)
    try {
      expect((await connection.answer(1)).status).toBe(408)
      await until(() => connection.isClosed)
    } finally {
      clearInterval(timer)
    }
  })

  test('ignores expectations that it does not know', async () => {
    expect((await send('GET /healthz HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\n\r\n', area)).status).toBe(200)
  })
})

describe('methods', () => {
  test.each(['FOO', 'PROPFIND', 'QUERY', 'PUT'])('%s answers 405 with the methods of the path', async (method) => {
    const answer = await send(`${method} /v1/apps HTTP/1.1\r\n${authorized()}\r\n`)
    expect(answer).toMatchObject({ status: 405, headers: { allow: 'POST, GET, HEAD' } })
    const page = await send(`${method} /healthz HTTP/1.1\r\n${authorized()}\r\n`)
    expect(page).toMatchObject({ status: 405, headers: { allow: 'GET, HEAD' } })
  })

  test('an unknown method after another request on the same connection answers 405', async () => {
    const connection = new Connection('platform').write(
      'GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nFOO /v1/orgs HTTP/1.1\r\nHost: x\r\n\r\n',
    )
    expect((await connection.answer()).status).toBe(200)
    expect((await connection.answer(1)).status).toBe(405)
  })
})

describe('an Upgrade header', () => {
  const body = JSON.stringify({ name: 'box' })
  const upgrades = 'Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n'

  test('for another protocol than WebSocket is ignored', async () => {
    const made = await send(
      `POST /v1/sandboxes HTTP/1.1\r\n${authorized()}${upgrades}Content-Length: ${body.length}\r\n\r\n${body}`,
      'sandbox',
    )
    expect(made).toMatchObject({ status: 201, body: { name: 'box' } })
    const chunks = `${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n`
    const again = await send(
      `POST /v1/sandboxes HTTP/1.1\r\n${authorized()}${upgrades}Transfer-Encoding: chunked\r\n\r\n${chunks}`,
      'sandbox',
    )
    expect(again.status).toBe(409)
    for (const name of ['h2c', 'TLS/1.2', 'HTTP/3.0', 'foo, bar', 'Websockets']) {
      const get = `GET /v1/sandboxes/box HTTP/1.1\r\n${authorized()}Connection: Upgrade\r\nUpgrade: ${name}\r\n\r\n`
      expect(await send(get, 'sandbox'), name).toMatchObject({ status: 200, body: { name: 'box' } })
      const app = `GET /v1/orgs HTTP/1.1\r\n${authorized()}Connection: Upgrade\r\nUpgrade: ${name}\r\n\r\n`
      expect((await send(app)).status, name).toBe(200)
    }
    // The platform API has no WebSockets.
    const socket = `GET /v1/orgs HTTP/1.1\r\n${authorized()}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n`
    expect((await send(socket)).status).toBe(200)
  })

  test('does not stop a connection from being used again', async () => {
    const connection = new Connection('sandbox')
    const get = `GET /v1/sandboxes HTTP/1.1\r\n${authorized()}${upgrades}\r\n`
    for (let index = 0; index < 3; index++) expect((await connection.write(get).answer(index)).status).toBe(200)
  })

  test.each([
    ['the key', 'Sec-WebSocket-Version: 13\r\n'],
    ['the version', 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n'],
  ])('for a WebSocket without %s is refused in the documented format', async (_name, header) => {
    const connection = new Connection('sandbox').write(
      `GET /v1/sandboxes/box/exec HTTP/1.1\r\n${authorized()}Connection: Upgrade\r\nUpgrade: WebSocket\r\n${header}\r\n`,
    )
    expect(await connection.answer()).toMatchObject({ status: 400, body: { error: 'bad_request' } })
    await until(() => connection.isClosed)
  })
})

const withIntegers = [...platformRoutes, ...sandboxRoutes].flatMap((route) =>
  Object.entries((route.query?.properties ?? {}) as Record<string, { type?: string }>)
    .filter(([, { type }]) => type === 'integer')
    .map(([name]) => ({ ...route, name })),
)

test.each(withIntegers)(
  '$method $path takes $name in decimal digits only',
  async ({ method, path, name, query, body: schema }) => {
    const call = path.startsWith('/v1/sandboxes') ? platform.callSandbox : platform.call
    const others = ((query!.required ?? []) as string[]).filter((one) => one !== name).map((one) => `&${one}=x`)
    const fields = (schema?.required ?? []) as string[]
    const options = fields.length > 0 ? { body: Object.fromEntries(fields.map((field) => [field, 'eA=='])) } : {}
    for (const text of ['1e2', '0x10', '+5', ' 5', '5 ', '5.0', '1e999', '', '--5', '５', '9'.repeat(30)]) {
      const url = `${path.replaceAll(/\{\w+\}/g, 'x')}?${name}=${encodeURIComponent(text)}${others.join('')}`
      const { status, body } = await call(method, url, options)
      // Some operations look for the resource first, and it does not exist.
      if (status === 404) continue
      expect([400, 422], url).toContain(status)
      expect(body.message ?? body.error, url).toBe(`${name} must be an integer`)
    }
  },
)
