// Files of a sandbox, with the public client library, and over plain HTTP for what it does not support.
import { createHash, randomBytes } from 'node:crypto'
import { on, once } from 'node:events'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { type Sprite, SpritesClient } from '@fly/sprites'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { Berth } from '../../support/berth.ts'
import { destroy } from '../../support/client.ts'
import { until } from '../../support/until.ts'

const berth = new Berth()
let sprite: Sprite

beforeAll(async () => {
  await berth.up()
  const client = new SpritesClient(berth.token, { baseURL: berth.addresses.sandbox })
  sprite = await client.createSprite('files')
})

afterAll(async () => {
  await sprite?.delete()
  await destroy(berth)
})

/** Returns the output of a shell in the sandbox. */
async function sh(script: string): Promise<string> {
  const { stdout } = await sprite.execFile('sh', ['-c', script])
  return String(stdout).trimEnd()
}

function urlOf(operation: string, query: Record<string, string> = {}): string {
  return `${berth.addresses.sandbox}/v1/sandboxes/files/fs/${operation}?${new URLSearchParams(query)}`
}

async function call(method: string, operation: string, query: Record<string, string>, init: RequestInit = {}) {
  const headers = { authorization: `Bearer ${berth.token}`, ...(init.headers as Record<string, string>) }
  const reply = await fetch(urlOf(operation, query), { ...init, method, headers })
  const bytes = Buffer.from(await reply.arrayBuffer())
  const isJson = reply.headers.get('content-type')?.startsWith('application/json')
  return {
    status: reply.status,
    bytes,
    body: isJson ? JSON.parse(bytes.toString()) : undefined,
    headers: reply.headers,
  }
}

const read = (path: string, query = {}, init = {}) => call('GET', 'read', { path, ...query }, init)
const write = (path: string, body: string | Buffer, query = {}) => call('PUT', 'write', { path, ...query }, { body })
const list = (path: string, query = {}) => call('GET', 'list', { path, ...query })
const remove = (path: string, query = {}) => call('DELETE', 'delete', { path, ...query })
const post = (operation: string, body: object) => call('POST', operation, {}, { body: JSON.stringify(body) })

const digest = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex')

describe('the client library', () => {
  test('supports the file operations of Node', async () => {
    const fs = sprite.filesystem('/home/sprite')
    await fs.mkdir('made/deep', { recursive: true })
    expect(await fs.readdir('made')).toEqual(['deep'])
    await fs.writeFile('made/a.txt', 'hello')
    await fs.appendFile('made/a.txt', ' world')
    expect(await fs.readFile('made/a.txt', 'utf8')).toBe('hello world')
    const stat = await fs.stat('made/a.txt')
    expect([stat.size, stat.mode, stat.isFile(), stat.isDirectory()]).toEqual([11, 0o644, true, false])
    expect(Math.abs(Date.now() - stat.mtime.getTime())).toBeLessThan(60_000)
    await fs.writeJSON('made/deep/b.json', { one: 1 })
    expect(await fs.readJSON('made/deep/b.json')).toEqual({ one: 1 })
    await fs.rename('made/a.txt', 'made/c.txt')
    await fs.copyFile('made/c.txt', '/tmp/d.txt')
    await fs.copyFile('made', '/tmp/twin', { recursive: true })
    await fs.chmod('/tmp/d.txt', 0o700)
    expect(await sh('cat /tmp/d.txt /tmp/twin/deep/b.json; stat -c " %a" /tmp/d.txt')).toBe('hello world{"one":1} 700')
    const entries = await fs.readdir('made', { withFileTypes: true, recursive: true })
    expect(entries.map((entry) => [entry.name, entry.isDirectory()])).toEqual([
      ['c.txt', false],
      ['deep', true],
      ['b.json', false],
    ])
    expect([await fs.exists('made/c.txt'), await fs.exists('made/a.txt')]).toEqual([true, false])
    await fs.rm('made', { recursive: true })
    await fs.rm('made', { force: true })
    expect(await sh('ls /home/sprite')).toBe('')
  })

  test('gets errors with the codes of Node', async () => {
    const fs = sprite.filesystem('/')
    await fs.writeFile('/tmp/codes/file', '')
    const codeOf = (answer: Promise<unknown>) =>
      answer.then(String, (error: { code: string; path: string }) => error.code)
    expect(await codeOf(fs.readFile('/tmp/none', 'utf8'))).toBe('ENOENT')
    expect(await codeOf(fs.readFile('/tmp/codes', 'utf8'))).toBe('EISDIR')
    expect(await codeOf(fs.readFile('/tmp/codes/file/x', 'utf8'))).toBe('ENOTDIR')
    expect(await codeOf(fs.rm('/tmp/codes'))).toBe('ENOTEMPTY')
    expect(await codeOf(fs.rm('/', { recursive: true }))).toBe('EINVAL')
    expect(await codeOf(fs.chown('/tmp/codes', { uid: 'nobody-there' }))).toBe('EINVAL')
    await expect(fs.readFile('/tmp/none', 'utf8')).rejects.toMatchObject({ path: '/tmp/none' })
  })

  test('changes owners by number and by name, also of links', async () => {
    await sh('mkdir -p /tmp/owned/in; touch /tmp/owned/in/f; ln -s /etc/hosts /tmp/owned/link')
    const changed = sprite.filesystem('/tmp').chown('owned', { uid: 'daemon', gid: 2, recursive: true })
    // Without root a sandbox has a single uid.
    if (process.getuid!() !== 0) return expect(changed).rejects.toMatchObject({ code: 'EINVAL' })
    await changed
    expect(await sh('stat -c "%u:%g" /tmp/owned /tmp/owned/in/f /tmp/owned/link; stat -Lc %u /tmp/owned/link')).toBe(
      '1:2\n1:2\n1:2\n0',
    )
  })

  test('watches files', async () => {
    await sh('mkdir -p /tmp/watched')
    const watcher = await sprite.filesystem('/tmp').watch('watched', { recursive: true })
    try {
      expect(await watcher.next()).toEqual({ type: 'subscribed', paths: ['/tmp/watched'] })
      const seen: string[] = []
      const watchUntil = async (last: string) => {
        while (seen.at(-1) !== last) {
          const event = (await watcher.next()) as { type: string; event: string; path: string; timestamp: string }
          expect(event.type).toBe('event')
          expect(event.timestamp).toMatch(/Z$/)
          seen.push(`${event.event} ${event.path}`)
        }
      }
      await sh('mkdir /tmp/watched/d')
      await watchUntil('create /tmp/watched/d')
      await sh('cd /tmp/watched; echo 1 > d/f; chmod 600 d/f; mv d/f g')
      await write('/tmp/watched/h', 'x')
      // Events that repeat within a moment are reported once.
      await watchUntil('write /tmp/watched/h')
      await write('/tmp/watched/h', 'yy')
      await sh('rm -r /tmp/watched/d')
      await watchUntil('remove /tmp/watched/d')
      for (const expected of [
        'create /tmp/watched/d',
        'create /tmp/watched/d/f',
        'write /tmp/watched/d/f',
        'chmod /tmp/watched/d/f',
        'rename /tmp/watched/d/f',
        'create /tmp/watched/g',
      ]) {
        expect(seen).toContain(expected)
      }
      // The temporary file of an upload is not reported.
      expect(seen.filter((event) => event.includes('~'))).toEqual([])
      expect(seen.filter((event) => event.endsWith('/h'))).toEqual([
        'create /tmp/watched/h',
        'write /tmp/watched/h',
        'write /tmp/watched/h',
      ])
    } finally {
      watcher.close()
    }
    const missing = await sprite.filesystem('/tmp').watch('not-there')
    expect(await missing.next()).toMatchObject({ type: 'error', message: expect.stringContaining('/tmp/not-there') })
    expect(await missing.next()).toBe(null)
  })
})

describe('large and unusual files', () => {
  test('50 MB are uploaded and downloaded unchanged, as a whole and in ranges', async () => {
    const bytes = randomBytes(50 * 1024 * 1024)
    expect(await write('/home/sprite/big', bytes)).toMatchObject({ status: 201, body: { size: bytes.length } })
    expect(await sh('sha256sum < /home/sprite/big')).toBe(`${digest(bytes)}  -`)
    const whole = await read('/home/sprite/big')
    expect(digest(whole.bytes)).toBe(digest(bytes))
    const part = await read('/home/sprite/big', {}, { headers: { range: 'bytes=30000001-40000000' } })
    expect(part.status).toBe(206)
    expect(part.headers.get('content-range')).toBe(`bytes 30000001-40000000/${bytes.length}`)
    expect(digest(part.bytes)).toBe(digest(bytes.subarray(30_000_001, 40_000_001)))
    const end = await read('/home/sprite/big', { start: String(bytes.length - 5) })
    expect(end.bytes.equals(bytes.subarray(-5))).toBe(true)
    expect((await read('/home/sprite/big', { start: String(bytes.length) })).status).toBe(416)
    await remove('/home/sprite/big')
  })

  test('an aborted upload changes nothing and leaves nothing behind', async () => {
    await write('/tmp/cut/file', 'before')
    const upload = request(urlOf('write', { path: '/tmp/cut/file' }), {
      method: 'PUT',
      headers: { authorization: `Bearer ${berth.token}` },
    })
    upload.on('error', () => {})
    upload.write(randomBytes(1_000_000))
    await until(async () => (await sh('ls -A /tmp/cut')).includes('berth~'))
    upload.destroy()
    await until(async () => (await sh('ls -A /tmp/cut')) === 'file')
    expect(await sh('cat /tmp/cut/file')).toBe('before')
  })

  test('a reader sees either the old or the new file during an upload', async () => {
    const [a, b] = [Buffer.alloc(1_000_000, 'a'), Buffer.alloc(1_000_000, 'b')]
    await write('/tmp/either', a)
    let isWriting = true
    const writing = (async () => {
      for (let turn = 0; turn < 8; turn++) await write('/tmp/either', turn % 2 === 0 ? b : a)
      isWriting = false
    })()
    while (isWriting) {
      const { bytes } = await read('/tmp/either')
      expect(bytes.equals(a) || bytes.equals(b)).toBe(true)
    }
    await writing
  })

  test('any name is supported', async () => {
    const names = [
      ' ',
      'a b',
      '-rf',
      '"\'`$(id)',
      'new\nline',
      '😀 ж 日本',
      'x'.repeat(255),
      '\\',
      '*',
      '%00',
      '1',
      '0',
    ]
    for (const name of names) {
      expect((await write(`/tmp/odd/${name}`, name)).status).toBe(201)
      expect((await read(`/tmp/odd/${name}`)).bytes.toString()).toBe(name)
    }
    const { body } = await list('/tmp/odd')
    expect(body.entries.map((entry: { name: string }) => entry.name).sort()).toEqual(names.sort())
    expect((await write(`/tmp/odd/${'x'.repeat(256)}`, '')).body).toMatchObject({ code: 'ENAMETOOLONG' })
    for (const name of names) expect((await remove(`/tmp/odd/${name}`)).status).toBe(200)
  })

  test('names that are not UTF-8 are listed with replacement characters and deleted with their directory', async () => {
    await sh(`mkdir -p /tmp/bytes/in; touch "$(printf '/tmp/bytes/in/a\\377b')"`)
    const { body } = await list('/tmp/bytes', { recursive: 'true' })
    expect(body.entries.map((entry: { name: string }) => entry.name)).toEqual(['in', 'a\ufffdb'])
    await post('copy', { source: '/tmp/bytes', dest: '/tmp/bytes2', recursive: true })
    expect(await sh('ls /tmp/bytes2/in | od -An -tx1')).toBe(' 61 ff 62 0a')
    expect((await remove('/tmp/bytes2', { recursive: 'true' })).body.count).toBe(3)
  })

  test('pipes, sockets and devices are listed and not opened', async () => {
    await sh('mkdir -p /tmp/special; mkfifo /tmp/special/pipe; touch /tmp/special/file')
    const script = 'socket(S,1,1,0);bind(S,pack("Sa108",1,"/tmp/special/socket"))or die'
    await sprite.execFile('perl', ['-e', script])
    const kinds = (await list('/tmp/special')).body.entries.map((entry: { type: string }) => entry.type)
    expect(kinds).toEqual(['file', 'other', 'other'])
    for (const path of ['/tmp/special/pipe', '/tmp/special/socket', '/dev/zero', '/dev/tty', '/dev/null']) {
      expect((await read(path)).status).toBe(400)
      expect((await write(path, 'x')).status).toBe(400)
    }
    const copied = await post('copy', { source: '/tmp/special', dest: '/tmp/special2', recursive: true })
    expect(copied.body).toMatchObject({ count: 2, skipped: ['/tmp/special/pipe', '/tmp/special/socket'] })
    expect((await remove('/tmp/special', { recursive: 'true' })).body.count).toBe(4)
  })

  test('trees deeper than PATH_MAX are supported', async () => {
    const levels = 1500
    await sprite.execFile('perl', [
      '-e',
      `mkdir "/tmp/deep"; chdir "/tmp/deep"; for (1..${levels}) { mkdir "dir"; chdir "dir" } open F, ">f"; print F "end"`,
    ])
    expect((await list('/tmp/deep', { recursive: 'true' })).body.count).toBe(levels + 1)
    expect((await post('chmod', { path: '/tmp/deep', mode: '0711', recursive: true })).body.count).toBe(levels + 2)
    const copied = await post('copy', { source: '/tmp/deep', dest: '/tmp/deep2', recursive: true })
    expect(copied.body).toMatchObject({ count: levels + 2, totalBytes: 3 })
    for (const path of ['/tmp/deep', '/tmp/deep2']) {
      expect((await remove(path, { recursive: 'true' })).body).toMatchObject({ count: levels + 2 })
    }
  })

  test('simultaneous operations are queued', async () => {
    await write('/tmp/busy', 'x')
    // Sixteen run at once; none waits longer than ten seconds for a slot.
    const replies = await Promise.all(Array.from({ length: 24 }, () => read('/tmp/busy')))
    expect(replies.map((reply) => [reply.status, reply.bytes.toString()])).toEqual(Array(24).fill([200, 'x']))
  })
})

describe('the control channel', () => {
  test('supports all operations, one after another on one connection', async () => {
    const channel = new WebSocket(`${berth.addresses.sandbox.replace('http', 'ws')}/v1/sprites/files/control`, {
      headers: { authorization: `Bearer ${berth.token}` },
    })
    await once(channel, 'open')
    /** Collects the texts and bytes of an operation until its end. */
    const operate = async (op: string, args: object, ...pieces: Buffer[]) => {
      const answer = { texts: [] as object[], bytes: Buffer.alloc(0) }
      channel.send(`control:${JSON.stringify({ type: 'op.start', id: op, op, args })}`)
      for (const piece of pieces) channel.send(piece)
      for await (const [data, isBinary] of on(channel, 'message')) {
        const end = /^control:(.*)$/s.exec(isBinary ? '' : String(data))?.[1]
        if (end) return { ...answer, ...JSON.parse(end) }
        if (isBinary) answer.bytes = Buffer.concat([answer.bytes, data])
        else answer.texts.push(JSON.parse(String(data)))
      }
      throw new Error('the channel ended')
    }
    const done = { type: 'op.complete', args: { ok: true, exitCode: 0 } }
    const bytes = randomBytes(3_000_000)
    const path = '/tmp/control/file'
    const halves = [bytes.subarray(0, 1_000_001), bytes.subarray(1_000_001)]
    const written = await operate('fs.write', { path, mode: '0600' }, ...halves, Buffer.from([4]))
    expect(written).toMatchObject({ ...done, id: 'fs.write', texts: [{ path, size: bytes.length, mode: '0600' }] })
    const sized = await operate('fs.write', { path: 'sized', workingDir: '/tmp/control', size: '1' }, Buffer.from([4]))
    expect(sized).toMatchObject({ ...done, texts: [{ path: '/tmp/control/sized', size: 1 }] })
    const back = await operate('fs.read', { path })
    expect(back).toMatchObject({ ...done, texts: [{ size: bytes.length, mode: '0600' }] })
    expect(digest(back.bytes)).toBe(digest(bytes))
    expect((await operate('fs.read', { path, start: '5', end: '9' })).bytes).toEqual(bytes.subarray(5, 10))
    const listed = await operate('fs.list', { path: '/tmp/control' })
    expect(listed).toMatchObject({ ...done, texts: [{ count: 2, entries: [{ name: 'file' }, { name: 'sized' }] }] })
    expect(await operate('fs.chmod', { path, mode: '0640' })).toMatchObject({ ...done, texts: [{ count: 1 }] })
    expect(await operate('fs.chown', { path, uid: '0' })).toMatchObject({ ...done, texts: [{ count: 1 }] })
    const copy = { source: '/tmp/control', dest: '/tmp/control2', recursive: 'true' }
    expect(await operate('fs.copy', copy)).toMatchObject({ ...done, texts: [{ count: 3 }] })
    const rename = { source: '/tmp/control2', dest: '/tmp/control3' }
    expect(await operate('fs.rename', rename)).toMatchObject({ ...done, texts: [rename] })
    const deleted = await operate('fs.delete', { path: '/tmp/control3', recursive: 'true' })
    expect(deleted).toMatchObject({ ...done, texts: [{ count: 3 }] })
    const missing = { type: 'op.error', args: { code: 'ENOENT', message: expect.stringContaining('/tmp/none') } }
    expect(await operate('fs.read', { path: '/tmp/none' })).toMatchObject(missing)
    expect(await operate('fs.list', {})).toMatchObject({ type: 'op.error', args: { error: 'path is required' } })
    channel.terminate()
  })
})

describe('escapes', () => {
  const secret = `${berth.home}/secret`

  beforeAll(async () => {
    writeFileSync(secret, 'of the host')
    await sh(`mkdir -p /tmp/out/dir; cd /tmp/out
      ln -s ${secret} absolute; ln -s ../../../../../../../..${secret} relative; ln -s /proc/1/root${secret} process
      ln -s ${berth.home} home; ln -s / root; ln -s /proc/1/cwd cwd; ln -s ${secret} dir/link`)
  })

  test.each([
    '/tmp/out/absolute',
    '/tmp/out/relative',
    '/tmp/out/process',
    '/tmp/out/home/secret',
    `/tmp/out/root${secret}`,
    `/tmp/out/cwd${secret}`,
    secret,
    `/../../../../..${secret}`,
    `/proc/1/root${secret}`,
    `/proc/1/root/../../..${secret}`,
    `/proc/1/task/1/root${secret}`,
    `/proc/2/root${secret}`,
    `/proc/self/root${secret}`,
    `/proc/thread-self/root${secret}`,
  ])('%s does not reach the host', async (path) => {
    expect((await read(path)).status).toBe(404)
    expect((await list(path)).status).toBe(404)
    expect([400, 403, 404]).toContain((await post('chmod', { path, mode: '0777' })).status)
    expect([400, 403, 404]).toContain((await post('copy', { source: path, dest: '/tmp/stolen' })).status)
    expect((await remove(`${path}/x`)).status).toBe(404)
    await write(path, 'overwritten') // it may succeed or fail, but must not change the host
    expect(readFileSync(secret, 'utf8')).toBe('of the host')
    await sh(`rm -rf ${berth.home}`)
    expect(existsSync(secret)).toBe(true)
  })

  test('recursion does not follow links', async () => {
    await sh(
      'mkdir -p /tmp/victim; echo 1 > /tmp/victim/f; chmod 640 /tmp/victim/f; ln -sfn /tmp/victim /tmp/out/dir/victim',
    )
    expect((await list('/tmp/out/dir', { recursive: 'true' })).body.count).toBe(2)
    await post('chmod', { path: '/tmp/out/dir', mode: '0777', recursive: true })
    await post('chown', { path: '/tmp/out/dir', uid: 0, recursive: true })
    const copied = await post('copy', { source: '/tmp/out/dir', dest: '/tmp/out/copy', recursive: true })
    expect(copied.body.count).toBe(3)
    expect((await remove('/tmp/out/dir', { recursive: 'true' })).body.count).toBe(3)
    expect(await sh('readlink /tmp/out/copy/victim; stat -c %a /tmp/victim/f')).toBe('/tmp/victim\n640')
  })

  test('a directory that is replaced by a link during an operation is not followed', async () => {
    await sh('mkdir -p /tmp/race/target; for i in $(seq 50); do echo keep > /tmp/race/target/$i; done')
    const swapping = sprite.spawn('perl', [
      '-e',
      `chdir "/tmp/race"; while (!-e "stop") { mkdir "in"; mkdir "in/d"; open F, ">in/d/f"; close F;
        rename "in/d", "in/gone"; symlink "/tmp/race/target", "in/d"; unlink "in/d"; rename "in/gone", "in/d" }`,
    ])
    const ended = new Promise((resolve) => swapping.once('exit', resolve))
    for (let turn = 0; turn < 15; turn++) {
      await post('copy', { source: '/tmp/race/in', dest: '/tmp/race/out', recursive: true })
      await post('chmod', { path: '/tmp/race/in', mode: '0700', recursive: true })
      await remove('/tmp/race/in', { recursive: 'true' })
    }
    await write('/tmp/race/stop', '')
    await ended
    expect(await sh('cat /tmp/race/target/* | sort | uniq -c | tr -s " "')).toBe(' 50 keep')
    expect(await sh('stat -c %a /tmp/race/target/1; find /tmp/race/out -name 1 | wc -l')).toBe('644\n0')
  })

  test('files that the platform shows inside cannot be changed through the API', async () => {
    expect((await write('/.sprite/version.txt', 'x')).body).toMatchObject({ error: 'forbidden', code: 'EROFS' })
    expect((await write('/.berth/service/x/run', 'x')).body).toMatchObject({ code: 'EROFS' })
    expect((await remove('/.berth/service', { recursive: 'true' })).status).toBeGreaterThanOrEqual(400)
    expect((await write('/proc/sys/kernel/core_pattern', 'x')).status).toBe(403)
    expect((await post('rename', { source: '/proc', dest: '/proc2' })).status).toBe(409)
    expect(await sh('cat /.sprite/version.txt')).not.toBe('x')
  })
})
