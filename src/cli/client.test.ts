import { createServer, type IncomingMessage, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import { encodeSegment, request, requestIfPresent, type Session } from './client.ts'
import { ApiError } from './errors.ts'

let server: Server | undefined

afterEach(() => {
  server?.closeAllConnections()
  server?.close()
  server = undefined
})

async function serve(status: number, body: string, seen: (request: IncomingMessage, text: string) => void = () => {}) {
  server = createServer(async (incoming, outgoing) => {
    const text = (await incoming.toArray()).join('')
    seen(incoming, text)
    outgoing.writeHead(status).end(body)
  })
  await new Promise<void>((resolve) => server!.listen(0, '127.0.0.1', resolve))
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, token: 'berth_x' } satisfies Session
}

describe('request', () => {
  test('sends the token and the body and returns the answer', async () => {
    const seen: unknown[] = []
    const session = await serve(201, '{"id":"1"}', ({ method, url, headers }, text) => {
      seen.push(method, url, headers.authorization, JSON.parse(text))
    })
    expect(await request(session, 'POST', '/v1/things', { name: 'a', omitted: undefined })).toEqual({ id: '1' })
    expect(seen).toEqual(['POST', '/v1/things', 'Bearer berth_x', { name: 'a' }])
  })

  test('returns an empty object for an answer without a body', async () => {
    expect(await request(await serve(202, ''), 'DELETE', '/v1/things/1')).toEqual({})
  })

  test('throws the message of an error answer with its status and body', async () => {
    const session = await serve(422, '{"error":"that is taken","status":"name_taken"}')
    const refusal = await request(session, 'POST', '/v1/things', {}).catch((error) => error)
    expect(refusal).toBeInstanceOf(ApiError)
    expect(refusal).toMatchObject({
      status: 422,
      message: 'that is taken',
      body: { error: 'that is taken', status: 'name_taken' },
    })
  })

  test('replaces names of request fields by those of options in messages', async () => {
    const body = { error: 'machines are still running: 1; stop them first or delete with force=true' }
    const refusal = await request(await serve(422, JSON.stringify(body)), 'DELETE', '/').catch((error) => error)
    expect(refusal).toMatchObject({
      message: 'machines are still running: 1; stop them first or delete with --force',
      body,
    })
  })

  test('finds the message in answers of the sandbox API', async () => {
    const session = await serve(404, '{"error":"not_found","message":"no such sandbox"}')
    await expect(request(session, 'GET', '/')).rejects.toThrow(/^no such sandbox$/)
  })

  test('reports an answer that does not come from a platform', async () => {
    await expect(request(await serve(200, '<html>'), 'GET', '/')).rejects.toThrow('not with JSON')
  })

  test('says how to start a platform when none answers', async () => {
    const session = await serve(200, '')
    await new Promise((resolve) => server!.close(resolve))
    await expect(request(session, 'GET', '/')).rejects.toThrow(
      `no platform answers at ${session.url}; start one with "berth up"`,
    )
  })
})

describe('requestIfPresent', () => {
  test('returns undefined for a 404 and throws other refusals', async () => {
    expect(await requestIfPresent(await serve(404, '{"error":"gone"}'), '/')).toBeUndefined()
    server?.close()
    await expect(requestIfPresent(await serve(403, '{"error":"not yours"}'), '/')).rejects.toThrow('not yours')
  })
})

describe('encodeSegment', () => {
  test('encodes a name as one segment of the path', () => {
    expect(encodeSegment('a/b?c#d')).toBe('a%2Fb%3Fc%23d')
  })

  test.each(['', '.', '..'])('rejects %j', (name) => {
    expect(() => encodeSegment(name)).toThrow('is not a name')
  })
})
