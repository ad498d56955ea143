import { beforeEach, describe, expect, test, vi } from 'vitest'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { fake, call } = platform
const machines = machinesOf(platform, 'shop')
const { started, settle } = machines

beforeEach(async () => {
  await platform.createApp('shop')
})

describe('inside a machine', () => {
  test('exec returns the output and the exit code', async () => {
    const id = await started({}, { env: { GREETING: 'hello' } })
    const exec = (body: object) => machines.call('POST', id, '/exec', { body })
    expect(
      (await exec({ command: ['sh', '-c', 'echo $GREETING; cat; echo oops >&2; exit 3'], stdin: 'in' })).body,
    ).toEqual({
      exit_code: 3,
      exit_signal: 0,
      stdout: 'hello\nin',
      stderr: 'oops\n',
    })
    expect((await exec({ cmd: `sh -c 'echo "a b"'`, command: [] })).body.stdout).toBe('a b\n')
    const much = await exec({ command: ['sh', '-c', 'head -c 3000000 /dev/zero | tr "\\\\0" x'] })
    expect(much.body.stdout).toHaveLength(1024 * 1024)
    expect((await exec({ command: ['sleep', '100'], timeout: 1 })).status).toBe(408)
    for (const body of [
      {},
      { command: [] },
      { cmd: '' },
      { cmd: `'a` },
      { command: ['a\0'] },
      { command: ['a'], container: 'x' },
      { command: 'a' },
    ]) {
      expect((await exec(body)).status).toBe(400)
    }
    await machines.call('POST', id, '/stop')
    await settle()
    expect((await exec({ command: ['true'] })).status).toBe(412)
  })

  test('exec is refused while the program waits for a restart', async () => {
    const id = await started()
    fake.machines.machines.get(id)!.is = 'waiting'
    const reply = await machines.call('POST', id, '/exec', { body: { command: ['true'] } })
    expect(reply).toMatchObject({ status: 412, body: { error: expect.stringContaining('has exited') } })
  })

  test('exec is refused when the machine is removed at the same moment', async () => {
    const id = await started()
    const { pulled } = fake.images
    vi.spyOn(pulled, 'get').mockImplementationOnce((digest) => {
      fake.machines.machines.delete(id)
      return pulled.get(digest)
    })
    const reply = await machines.call('POST', id, '/exec', { body: { command: ['true'] } })
    expect(reply).toMatchObject({ status: 412, body: { error: expect.stringContaining('has exited') } })
  })

  test('processes, signals and memory', async () => {
    const id = await started()
    expect((await machines.call('GET', id, '/ps?sort_by=rss&order=desc')).body).toMatchObject([
      { pid: 1, command: 'program' },
    ])
    for (const signal of ['SIGHUP', 'usr1', 9])
      expect((await machines.call('POST', id, '/signal', { body: { signal } })).body).toEqual({ ok: true })
    for (const signal of ['SIGNOPE', 0, 99, '', null])
      expect((await machines.call('POST', id, '/signal', { body: { signal } })).status).toBe(400)
  })

  test('memory can be changed while it runs, within its limits, and reclaimed', async () => {
    const id = await started({}, { guest: { memory_mb: 256, max_memory_mb: 512 } })
    const put = (limit_mb: unknown) => machines.call('PUT', id, '/memory', { body: { limit_mb } })
    expect((await machines.call('GET', id, '/memory')).body).toEqual({ limit_mb: 256, available_mb: 255 })
    expect(await put(512)).toMatchObject({ status: 200, body: { limit_mb: 512, available_mb: 511 } })
    expect((await machines.call('GET', id, '/memory')).body.limit_mb).toBe(512)
    expect((await put(128)).body).toEqual({ limit_mb: 128, available_mb: 127 })
    expect(await put(1)).toMatchObject({ status: 412, body: { error: expect.stringContaining('uses more than 1 MB') } })
    expect(await put(513)).toMatchObject({ status: 400, body: { error: expect.stringContaining('at most 512') } })
    for (const wrong of [0, -1, 1.5, '256', undefined]) expect((await put(wrong)).status).toBe(400)
    const reclaim = (body: object) => machines.call('POST', id, '/memory/reclaim', { body })
    expect((await reclaim({ amount_mb: 1 })).body).toEqual({ actual_mb: 1 })
    expect((await reclaim({ amount_mb: 0 })).body).toEqual({ actual_mb: 0 })
    expect((await reclaim({})).body).toEqual({ actual_mb: 3 })
    expect((await reclaim({ amount_mb: -1 })).status).toBe(400)
    await machines.call('POST', id, '/stop')
    await settle()
    expect((await machines.call('GET', id, '/memory')).body).toEqual({ limit_mb: 256, available_mb: 256 })
    expect((await put(256)).status).toBe(412)
    expect((await reclaim({})).status).toBe(412)
    const other = await started()
    expect((await machines.call('PUT', other, '/memory', { body: { limit_mb: 512 } })).status).toBe(400)
  })

  test('logs of a machine and of an app are ordered by time', async () => {
    const [a, b] = [await started(), await started({ region: 'fra' })]
    fake.machines.machines
      .get(a)!
      .log.push({ at: 1, stream: 'stdout', text: 'one' }, { at: 3, stream: 'stderr', text: 'three' })
    fake.machines.machines.get(b)!.log.push({ at: 2, stream: 'stdout', text: 'two' })
    const lines = (reply: { body: string }) =>
      reply.body
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line))
    expect(lines(await machines.call('GET', a, '/logs'))).toEqual([
      { timestamp: '1970-01-01T00:00:00.001Z', message: 'one', stream: 'stdout', instance: a, region: 'local' },
      { timestamp: '1970-01-01T00:00:00.003Z', message: 'three', stream: 'stderr', instance: a, region: 'local' },
    ])
    const all = await call('GET', '/v1/apps/shop/logs?lines=2')
    expect(lines(all).map(({ message, instance }) => [message, instance])).toEqual([
      ['two', b],
      ['three', a],
    ])
    expect((await call('GET', '/v1/apps/shop/logs?lines=many')).status).toBe(400)
  })

  test('logs can be polled page by page', async () => {
    const [a, b] = [await started(), await started({ region: 'fra' })]
    const page = (query: object) =>
      call('GET', `/api/v1/apps/shop/logs?${new URLSearchParams({ next_token: '', ...query })}`)
    expect((await page({})).body).toEqual({ data: [], meta: { next_token: '' } })
    const say = (id: string, at: number, text: string) =>
      fake.machines.machines.get(id)!.log.push({ at, stream: 'stdout', text })
    const now = Date.now()
    say(a, now - 5000.25, 'one')
    say(b, now - 4000, 'two')
    const first = await page({})
    expect(first.body.data).toMatchObject([
      { attributes: { message: 'one', level: 'info', instance: a, region: 'local', meta: { instance: a } } },
      { attributes: { message: 'two', instance: b, region: 'fra', meta: { event: { provider: 'app' } } } },
    ])
    const { next_token } = first.body.meta
    expect(next_token).toMatch(/^\d{19}$/)
    expect((await page({ next_token })).body).toEqual({ data: [], meta: { next_token } })
    say(a, now - 3000, 'three')
    say(b, now + 60_000, 'not there yet')
    const second = await page({ next_token })
    expect(second.body.data).toMatchObject([{ attributes: { message: 'three', instance: a } }])
    const messages = async (query: object) =>
      (await page(query)).body.data.map(({ attributes }: { attributes: { message: string } }) => attributes.message)
    expect(await messages({ instance: b })).toEqual(['two'])
    expect(await messages({ region: 'local' })).toEqual(['one', 'three'])
    expect(await messages({ next_token: '1' })).toEqual(['one', 'two', 'three'])
    for (let at = 0; at < 1500; at++) say(b, now - 2000 + Math.floor(at / 10), String(at))
    let token = second.body.meta.next_token
    const seen: string[] = []
    for (let pages = 0; pages < 3; pages++) {
      const { body } = await page({ next_token: token })
      seen.push(...body.data.map(({ attributes }: { attributes: { message: string } }) => attributes.message))
      token = body.meta.next_token
    }
    expect(seen).toEqual(Array.from({ length: 1500 }, (_, at) => String(at)))
    expect((await page({ next_token: 'x' })).status).toBe(422)
  })
})
