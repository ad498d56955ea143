import { expect, test } from 'vitest'
import { useEdge } from '../support/edge.ts'

const edge = useEdge({ trustedProxies: ['127.0.0.1', '10.0.0.0/8'] })

test('what a trusted proxy says about the client reaches the program', async () => {
  const app = await edge.app()
  await edge.backendOf(app, (request, reply) => void reply.end(JSON.stringify(request.headers)))
  const reply = await edge.ask(app, {
    headers: {
      'x-forwarded-for': '6.6.6.6, 203.0.113.9, 10.1.1.1',
      'x-forwarded-proto': 'https',
      'x-forwarded-port': '443',
      'x-forwarded-host': 'shop.example.com',
      'fly-client-ip': '6.6.6.6',
    },
  })
  expect(JSON.parse(reply.body)).toMatchObject({
    'fly-client-ip': '203.0.113.9',
    'fly-forwarded-port': '443',
    'x-forwarded-for': '6.6.6.6, 203.0.113.9, 10.1.1.1, 127.0.0.1',
    'x-forwarded-proto': 'https',
    'x-forwarded-ssl': 'on',
    'x-forwarded-port': '443',
    'x-forwarded-host': 'shop.example.com',
  })
})

test('a port that forces HTTPS accepts requests that a trusted proxy received over HTTPS', async () => {
  const app = await edge.app()
  const service = { ports: [{ port: 80, handlers: ['http'], force_https: true }] }
  await edge.backendOf(app, (_request, reply) => void reply.end('secret'), { service })
  expect((await edge.ask(app)).status).toBe(301)
  expect((await edge.ask(app, { headers: { 'x-forwarded-proto': 'https' } })).body).toBe('secret')
})
