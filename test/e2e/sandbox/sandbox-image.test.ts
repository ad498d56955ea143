// Sandboxes made from an image of a registry, with the public client library on a real platform.
import { request } from 'node:http'
import { SpritesClient } from '@fly/sprites'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { destroy } from '../../support/client.ts'
import { busyboxImage } from '../../support/image.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

const berth = new Berth()
let registry: Registry
let client: SpritesClient
let image: { reference: string; digest: string }

beforeAll(async () => {
  registry = await startRegistry()
  const config = { Env: ['PATH=/bin', 'COLOUR=blue'], WorkingDir: '/data' }
  image = await pushImage(registry, { repository: 'box', ...busyboxImage(config) })
  await berth.up()
  client = new SpritesClient(berth.token, { baseURL: berth.addresses.sandbox })
}, 120_000)

afterAll(async () => {
  await registry?.close()
  await destroy(berth)
})

async function call(method: string, path: string, body?: object | string) {
  const reply = await fetch(`${berth.addresses.sandbox}/v1/sandboxes${path}`, {
    method,
    headers: { authorization: `Bearer ${berth.token}` },
    ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
  })
  const text = await reply.text()
  const isJson = reply.headers.get('content-type')?.startsWith('application/json')
  return { status: reply.status, text, body: isJson ? JSON.parse(text) : undefined }
}

/** Sends a request to the URL of the sandbox. */
function visit(name: string): Promise<{ status: number; body: string }> {
  const { hostname, port } = new URL(berth.addresses.edge)
  return new Promise((resolve, reject) => {
    const asked = request({ host: hostname, port, headers: { host: `${name}.sandbox.localhost` } }, async (reply) => {
      let body = ''
      for await (const chunk of reply) body += chunk
      resolve({ status: reply.statusCode!, body })
    })
    asked.on('error', reject).end()
  })
}

test('commands, services, files and checkpoints work in a sandbox made from an image', async () => {
  const made = await call('POST', '', { name: 'boxed', image: image.reference, url_settings: { auth: 'public' } })
  expect(made.status, made.text).toBe(201)
  expect(made.body).toMatchObject({ status: 'cold', image: { reference: image.reference } })
  expect(made.body.image.digest).toBeUndefined()
  const sprite = client.sprite('boxed')
  const { stdout } = await sprite.execFile('sh', ['-c', 'pwd; echo $COLOUR $HOME; ls /usr'])
  expect(stdout).toBe('/data\nblue /home/sprite\n')
  expect((await call('GET', '/boxed')).body.image).toEqual({ reference: image.reference, digest: image.digest })

  // From now on the tag names another image, and the sandbox keeps its own.
  await pushImage(registry, { repository: 'box', ...busyboxImage({ Env: ['PATH=/bin', 'COLOUR=red'] }) })
  const fs = sprite.filesystem('/')
  await fs.writeFile('/www/index.html', 'hello from the image')
  expect(String(await fs.readFile('/www/index.html'))).toBe('hello from the image')
  const put = await call('PUT', '/boxed/services/web?duration=100ms', {
    cmd: 'httpd',
    args: ['-f', '-p', '8080', '-h', '/www'],
    http_port: 8080,
    health: { command: ['sh', '-c', 'test "$COLOUR" = blue'] },
  })
  expect(put.text).toContain('"started"')
  expect(await visit('boxed')).toEqual({ status: 200, body: 'hello from the image' })

  expect((await call('POST', '/boxed/checkpoint', { comment: 'before' })).text).toContain('complete')
  await sprite.execFile('sh', ['-c', 'rm -r /www /bin/ls'])
  expect((await call('POST', '/boxed/checkpoints/v1/restore')).text).toContain('complete')
  await until(async () => (await visit('boxed')).body === 'hello from the image', 60)

  for (const child of berth.children) await end(child)
  await berth.up()
  expect((await call('POST', '/boxed/restart')).status).toBe(200)
  client = new SpritesClient(berth.token, { baseURL: berth.addresses.sandbox })
  const after = await client.sprite('boxed').execFile('sh', ['-c', 'echo $COLOUR; ls -d /www'])
  expect(after.stdout).toBe('blue\n/www\n')
  await until(async () => (await visit('boxed')).body === 'hello from the image', 60)
  expect((await call('DELETE', '/boxed')).status).toBe(204)
}, 180_000)

test('an image that cannot be pulled is reported at the first use and by the check', async () => {
  const reference = `${registry.host}/nothing:here`
  expect((await call('POST', '', { name: 'without', config: { image: reference } })).status).toBe(201)
  const used = await call('GET', '/without/fs/list?path=/')
  expect(used.status).toBe(409)
  expect(used.body.message ?? used.text).toContain(`the image ${reference} of this sandbox cannot be pulled`)
  expect((await call('GET', '/without')).body.image.problem).toMatch(/\w/)
  expect((await call('GET', '/without/check')).body).toMatchObject({ status: 'unhealthy' })
  await pushImage(registry, { repository: 'nothing', tag: 'here', ...busyboxImage() })
  expect((await call('GET', '/without/fs/list?path=/')).status).toBe(200)
  expect((await call('GET', '/without')).body.image.problem).toBeUndefined()
  expect((await call('DELETE', '/without')).status).toBe(204)
})

test.each(['', 'Not An Image', 'a@sha256:12', '../etc'])('%j is rejected as an image', async (reference) => {
  const refused = await call('POST', '', { name: 'never', image: reference })
  expect(refused.status).toBe(400)
  expect(refused.text).toContain('image')
})
