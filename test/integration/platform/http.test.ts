import { brotliDecompressSync, gunzipSync } from 'node:zlib'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { platformRoutes } from '../../../src/api/routes.ts'
import { type Method, usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()

describe('the token of a request', () => {
  test.each([
    ['no header', undefined],
    ['an empty header', ''],
    ['a scheme alone', 'Bearer'],
    ['a scheme and spaces', 'Bearer   '],
    ['another scheme', 'Basic abc'],
    ['no scheme', 'berth_test_root'],
    ['an unknown token', 'Bearer berth_unknown'],
    ['two words', 'Bearer berth_test_root x'],
    ['schemes only', 'Bearer FlyV1'],
  ])('with %s is rejected with 401 and a WWW-Authenticate header', async (_name, authorization) => {
    for (const { method, path, problem } of platformRoutes) {
      const url = path.replaceAll(/\{\w+\}/g, 'x')
      const reply = await platform.call(method, url, {
        token: null,
        headers: authorization === undefined ? {} : { authorization },
      })
      expect(reply.status, `${method} ${url}`).toBe(401)
      expect(reply.headers['www-authenticate']).toBe('Bearer')
      // Some clients read the message from another field.
      expect(reply.body).toEqual({ error: expect.any(String), ...(problem ? { errors: expect.anything() } : {}) })
    }
  })

  test.each(['Bearer', 'bearer', 'BEARER', 'FlyV1', 'flyv1', 'Bearer FlyV1', 'FlyV1 Bearer', 'Bearer  '])(
    'is accepted with the scheme %j',
    async (scheme) => {
      const headers = { authorization: `${scheme} ${platform.rootToken}` }
      expect((await platform.call('GET', '/v1/orgs', { token: null, headers })).status).toBe(200)
    },
  )

  test('is checked before the fields', async () => {
    for (const body of [
      { app_name: 5 },
      { app_name: 'Bad Name', org_slug: 'personal' },
      { app_name: 'x', org_slug: '!' },
    ]) {
      expect((await platform.call('POST', '/v1/apps', { token: 'berth_wrong', body })).status).toBe(401)
    }
    expect((await platform.call('POST', '/v1/apps', { token: 'berth_wrong', raw: '{' })).status).toBe(401)
    expect((await platform.call('GET', '/v1/apps/Bad%20Name', { token: 'berth_wrong' })).status).toBe(401)
    expect((await platform.call('GET', '/v1/apps', { token: 'berth_wrong' })).status).toBe(401)
    expect((await platform.call('DELETE', '/v1/apps/x?force=maybe', { token: 'berth_wrong' })).status).toBe(401)
  })
})

test('a request without a valid token gets no validation errors from any operation', async () => {
  const odd = (schema?: { properties: object }) =>
    Object.fromEntries(Object.keys(schema?.properties ?? {}).map((name) => [name, '!']))
  for (const { method, path, query, body } of platformRoutes) {
    const url = `${path.replaceAll(/\{\w+\}/g, '!')}?${new URLSearchParams(odd(query))}`
    const reply = await platform.call(method, url, { token: 'berth_wrong', ...(body && { body: odd(body) }) })
    expect(reply.status, `${method} ${url}`).toBe(401)
  }
})

describe('bodies', () => {
  const body = { app_name: 'typed', org_slug: 'personal' }

  test.each([
    'application/x-www-form-urlencoded',
    'text/plain',
    'application/json; charset=utf-8',
    'nonsense',
    '///',
    ';',
  ])('are parsed as JSON with any Content-Type: %s', async (type) => {
    const made = await platform.call('POST', '/v1/apps', {
      raw: JSON.stringify(body),
      headers: { 'content-type': type },
    })
    expect(made.status).toBe(201)
  })

  test('are parsed as JSON without a Content-Type', async () => {
    expect((await platform.call('POST', '/v1/apps', { raw: Buffer.from(JSON.stringify(body)) })).status).toBe(201)
  })

  test('may be empty, which counts as {}', async () => {
    for (const raw of ['', '  \n']) {
      const reply = await platform.call('POST', '/v1/apps', { raw, headers: { 'content-type': 'application/json' } })
      expect(reply).toMatchObject({ status: 422, body: { error: 'app_name is required' } })
    }
    expect((await platform.call('POST', '/v1/apps')).status).toBe(422)
    await platform.createApp('gone')
    const headers = { 'content-type': 'application/json' }
    expect((await platform.call('DELETE', '/v1/apps/gone', { headers, raw: '' })).status).toBe(202)
  })

  test.each(['{', '[]', '"text"', '5', 'null', 'true', '{"a":1}{', 'a=b', '\u0000', '{"app_name": "x",}', "{'a':1}"])(
    '%j answers 400',
    async (raw) => {
      const reply = await platform.call('POST', '/v1/apps', { raw })
      expect(reply.status).toBe(400)
      expect(reply.body).toEqual({ error: expect.stringContaining('JSON') })
    },
  )

  test('over 1 MiB are rejected with 413', async () => {
    const raw = JSON.stringify({ ...body, padding: 'x'.repeat(1024 * 1024) })
    expect(await platform.call('POST', '/v1/apps', { raw })).toMatchObject({
      status: 413,
      body: { error: expect.stringContaining('1 MiB') },
    })
    const fits = JSON.stringify({ ...body, padding: 'x'.repeat(1024 * 1024 - 200) })
    expect((await platform.call('POST', '/v1/apps', { raw: fits })).status).toBe(201)
  })
})

describe('paths and methods', () => {
  test.each(['/', '/v1', '/v1/app', '/v1/apps/x/y', '/v2/apps', '/v1/apps/x%2F..', '/%2e%2e/etc/passwd'])(
    '%s answers in the documented format',
    async (url) => {
      const reply = await platform.call('GET', url)
      if (url === '/') expect(reply.status).toBe(302)
      else expect(reply).toMatchObject({ status: 404, body: { error: expect.any(String) } })
    },
  )

  test.each([
    ['PUT', '/v1/apps', 'POST, GET, HEAD'],
    ['PATCH', '/v1/apps/x', 'GET, HEAD, DELETE'],
    ['OPTIONS', '/v1/apps', 'POST, GET, HEAD'],
    ['POST', '/v1/apps/x', 'GET, HEAD, DELETE'],
    ['GET', '/v1/tokens/x', 'DELETE'],
  ] as [Method, string, string][])('%s %s answers 405 with the allowed methods', async (method, url, allow) => {
    const reply = await platform.call(method, url)
    expect(reply).toMatchObject({ status: 405, headers: { allow }, body: { error: expect.any(String) } })
    expect((await platform.call(method, url, { token: null })).status).toBe(401)
    expect((await platform.call(method, url, { token: 'berth_wrong' })).status).toBe(401)
  })

  test('a path with invalid percent-encoding returns 400', async () => {
    expect(await platform.call('GET', '/v1/apps/%zz')).toMatchObject({
      status: 400,
      body: { error: expect.any(String) },
    })
  })

  test('HEAD returns the headers of GET without a body', async () => {
    await platform.createApp('head')
    expect(await platform.call('HEAD', '/v1/apps/head')).toMatchObject({ status: 200, body: '' })
    expect((await platform.call('HEAD', '/v1/apps/none')).status).toBe(404)
  })

  test('every response has a unique request id', async () => {
    const ids = new Set<unknown>()
    for (const [method, url] of [
      ['GET', '/v1/orgs'],
      ['GET', '/nowhere'],
      ['PUT', '/v1/apps'],
      ['GET', '/%zz'],
      ['GET', '/healthz'],
    ] as [Method, string][]) {
      const { headers } = await platform.call(method, url)
      expect(headers['fly-request-id']).toMatch(/^[0-9a-f-]{36}$/)
      ids.add(headers['fly-request-id'])
    }
    expect(ids.size).toBe(5)
  })
})

describe('pages', () => {
  test('health, readiness and metrics need no token', async () => {
    expect(await platform.call('GET', '/healthz', { token: null })).toMatchObject({
      status: 200,
      body: { status: 'ok' },
    })
    expect(await platform.call('GET', '/readyz', { token: null })).toMatchObject({
      status: 200,
      body: { status: 'ready' },
    })
    const metrics = await platform.call('GET', '/metrics', { token: null })
    expect(metrics.body).toContain('berth_http_request_seconds_count{area="platform"')
  })

  test('metrics are available to local clients and root tokens only', async () => {
    const from = (remoteAddress: string, token?: string, headers = {}) =>
      platform.server.inject({
        url: '/metrics',
        remoteAddress,
        headers: { ...headers, ...(token ? { authorization: `Bearer ${token}` } : {}) },
      })
    expect((await from('127.0.0.1')).statusCode).toBe(200)
    // A proxy on this host connects from loopback for everyone.
    for (const name of ['x-forwarded-for', 'forwarded', 'via', 'x-real-ip']) {
      expect((await from('127.0.0.1', undefined, { [name]: '198.51.100.7' })).statusCode).toBe(401)
    }
    expect((await from('192.0.2.1')).statusCode).toBe(401)
    expect((await from('192.0.2.1', await platform.createToken('org', 'personal'))).statusCode).toBe(403)
    expect((await from('192.0.2.1', platform.rootToken)).statusCode).toBe(200)
  })

  test('both APIs serve their OpenAPI document', async () => {
    expect((await platform.call('GET', '/openapi.json', { token: null })).body).toMatchObject({
      openapi: '3.1.0',
      info: { version: '1.0' },
    })
    expect((await platform.callSandbox('GET', '/openapi.json', { token: null })).body.openapi).toBe('3.1.0')
    expect((await platform.call('GET', '/docs', { token: null })).body).toContain('/v1/apps/{app_name}')
  })

  test.each(['/docs', '/openapi.json'])('%s is compressed, and not sent again to a client that has it', async (url) => {
    const get = (headers: Record<string, string>) => platform.server.inject({ url, headers })
    const plain = await get({})
    expect(plain.headers['content-encoding']).toBeUndefined()
    for (const [encoding, decode] of [
      ['br', brotliDecompressSync],
      ['gzip', gunzipSync],
    ] as const) {
      const small = await get({ 'accept-encoding': encoding })
      expect(small.headers).toMatchObject({ 'content-encoding': encoding, vary: 'accept-encoding' })
      expect(small.headers['fly-request-id']).toBeDefined()
      expect(decode(small.rawPayload).equals(plain.rawPayload)).toBe(true)
      expect(small.rawPayload.length).toBeLessThan(plain.rawPayload.length / 8)
      const etag = String(small.headers.etag)
      const again = await get({ 'accept-encoding': encoding, 'if-none-match': `"other", W/${etag}` })
      expect([again.statusCode, again.body, again.headers.etag]).toEqual([304, '', etag])
      expect((await get({ 'if-none-match': etag })).statusCode).toBe(200)
    }
  })

  test('the sandbox API has its own error format', async () => {
    expect((await platform.callSandbox('GET', '/v1/nothing')).body).toEqual({
      error: 'not_found',
      message: expect.any(String),
    })
  })
})

describe('concurrent requests', () => {
  const ask = (name: string, token?: string) => platform.call('GET', `/v1/apps/${name}`, token ? { token } : {})

  test('each get their own response', async () => {
    await platform.createApp('one')
    await platform.createApp('two')
    const replies = await Promise.all(
      Array.from({ length: 60 }, (_, n) => [ask('one'), ask('two'), ask('none'), ask('one', 'berth_wrong')][n % 4]!),
    )
    for (const [n, { status, body }] of replies.entries()) {
      expect([status, body.name]).toEqual(
        [
          [200, 'one'],
          [200, 'two'],
          [404, undefined],
          [401, undefined],
        ][n % 4],
      )
    }
  })

  test('fail while the state database is unavailable, and succeed again afterwards', async () => {
    await platform.createApp('one')
    expect((await ask('one')).status).toBe(200)
    const asked = Array.from({ length: 20 }, () => ask('one'))
    await platform.sql(
      `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`,
    )
    for (const { status } of await Promise.all(asked)) expect([200, 503]).toContain(status)
    await until(async () => (await ask('one')).status === 200)
  })
})

describe('arbitrary input', () => {
  const anything = fc.anything({ maxDepth: 2, withNullPrototype: false })
  const fields = fc.dictionary(
    fc.constantFrom(
      'app_name',
      'name',
      'org_slug',
      'network',
      'enable_subdomains',
      'slug',
      'kind',
      'sandbox',
      'expires_in_seconds',
    ),
    fc.oneof(
      anything,
      fc.string(),
      fc.string({ unit: 'binary' }),
      fc.constantFrom('personal', 'org', 'sandbox', 'a\u0000'),
    ),
  )

  test('causes neither a 5xx nor a malformed error in any operation', async () => {
    await fc.assert(
      fc.asyncProperty(
        // One of them replaces the token of this test.
        fc.constantFrom(...platformRoutes.filter(({ id }) => id !== 'rotateRootToken')),
        fields,
        fc.string({ unit: 'binary' }),
        fc.dictionary(fc.string(), fc.string()),
        async (route, body, word, query) => {
          const url = route.path.replaceAll(/\{\w+\}/g, encodeURIComponent(word.toWellFormed()) || 'x')
          const search = new URLSearchParams(query).toString()
          const raw = JSON.stringify(body) ?? ''
          const reply = await platform.call(route.method, `${url}?${search}`, route.method === 'GET' ? {} : { raw })
          expect(reply.status).toBeLessThan(500)
          if (reply.status >= 400) expect(Object.keys(reply.body)).toContain('error')
          expect(Object.keys(route.errors).concat('400', String(route.status), '404', '405')).toContain(
            String(reply.status),
          )
        },
      ),
      { numRuns: 300 },
    )
  })

  test('in the body causes no 5xx', async () => {
    await fc.assert(
      fc.asyncProperty(fc.oneof(fc.string({ unit: 'binary' }), fc.json()), async (raw) => {
        const reply = await platform.call('POST', '/v1/apps', { raw })
        expect([400, 422]).toContain(reply.status)
      }),
      { numRuns: 200 },
    )
  })

  test('is accepted as a name exactly when it matches the pattern', async () => {
    const nearNames = fc.string({
      unit: fc.constantFrom('a', 'z', '0', '9', '-', 'A', '.', '_', 'é'),
      minLength: 1,
      maxLength: 66,
    })
    await fc.assert(
      fc.asyncProperty(nearNames, async (name) => {
        const legal = name.length <= 63 && /^[a-z0-9-]+$/.test(name) && !name.startsWith('-') && !name.endsWith('-')
        const made = await platform.createApp(name)
        expect(made.status).toBe(legal ? 201 : 422)
        if (legal) await platform.call('DELETE', `/v1/apps/${name}`)
      }),
      { numRuns: 200 },
    )
  })
})
