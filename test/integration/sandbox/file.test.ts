import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { fileRoutes } from '../../../src/api/sandbox/file.ts'
import { type CallOptions, type Method, usePlatform } from '../../support/platform.ts'

// The sandbox of these tests is the host itself: operations are real, but nothing is isolated.
const platform = usePlatform()
let directory: string

beforeEach(async () => {
  directory = mkdtempSync(`${tmpdir()}/berth-file-`)
  expect((await platform.callSandbox('POST', '/v1/sandboxes', { body: { name: 'box' } })).status).toBe(201)
})

afterEach(() => rmSync(directory, { recursive: true, force: true }))

const at = (name: string) => `${directory}/${name}`

function call(method: Method, operation: string, query: Record<string, string> = {}, options: CallOptions = {}) {
  const search = new URLSearchParams({ workingDir: directory, ...query })
  return platform.callSandbox(method, `/v1/sprites/box/fs/${operation}?${search}`, options)
}
const post = (operation: string, body: object, options: CallOptions = {}) =>
  platform.callSandbox('POST', `/v1/sandboxes/box/fs/${operation}`, {
    body: { workingDir: directory, ...body },
    ...options,
  })
const read = (path: string, query = {}, options: CallOptions = {}) => call('GET', 'read', { path, ...query }, options)
const write = (path: string, raw: string | Buffer, query = {}) => call('PUT', 'write', { path, ...query }, { raw })
const list = (path: string, query = {}) => call('GET', 'list', { path, ...query })
const remove = (path: string, query = {}) => call('DELETE', 'delete', { path, ...query })
const names = (reply: { body: { entries: { path: string }[] } }) =>
  reply.body.entries.map((entry) => entry.path.slice(directory.length + 1))

describe('authorization', () => {
  const calls = fileRoutes.map((route) => [route.method, route.path.split('/').at(-1)!, route.scope] as const)

  test.each(calls)('%s %s needs a token with its scope', async (method, operation, scope) => {
    await platform.createOrg('acme')
    writeFileSync(at('there'), 'x')
    const query = { path: 'there' }
    const body = { path: 'there', source: 'there', dest: 'other', mode: '0644', uid: process.getuid!() }
    const options = method === 'POST' ? { body: { ...body, workingDir: directory } } : {}
    const status = async (token: string | null) => {
      const reply = await call(method, operation, method === 'POST' ? {} : query, { ...options, token })
      return [reply.status, reply.body.error]
    }
    expect(await status(null)).toEqual([401, 'unauthorized'])
    expect(await status('berth_unknown')).toEqual([401, 'unauthorized'])
    expect(await status(await platform.createToken('org', 'acme'))).toEqual([404, 'not_found'])
    const reader = await status(await platform.createToken('read', 'personal'))
    expect(reader[0]).toBe(scope === 'read' ? 200 : 403)
    expect(existsSync(at('there'))).toBe(true)
    expect(readFileSync(at('there'), 'utf8')).toBe('x')
  })

  test('a missing sandbox is reported before an invalid path', async () => {
    const reply = await platform.callSandbox('GET', '/v1/sandboxes/none/fs/read?path=/x')
    expect(reply).toMatchObject({ status: 404, body: { error: 'not_found', message: 'sandbox not found' } })
    expect(reply.body.code).toBeUndefined()
    expect((await platform.callSandbox('GET', '/v1/sandboxes/none/fs/read?path=a%00b')).status).toBe(404)
    expect((await platform.callSandbox('GET', '/v1/sandboxes/none/fs/read?path=a%00b', { token: null })).status).toBe(
      401,
    )
  })

  test('the first use starts the sandbox', async () => {
    expect(platform.fake.boxesUp.size).toBe(0)
    await list('.')
    expect([...platform.fake.boxesUp.values()]).toEqual([true])
    expect((await platform.callSandbox('GET', '/v1/sandboxes/box')).body.status).toBe('running')
  })
})

describe('invalid input', () => {
  test.each([
    ['GET', 'read', {}],
    ['PUT', 'write', {}],
    ['DELETE', 'delete', {}],
    ['GET', 'read', { path: '' }],
    ['DELETE', 'delete', { path: '', recursive: 'true' }],
    ['GET', 'read', { path: 'a\0b' }],
    ['GET', 'list', { path: 'x', workingDir: '/a\0' }],
    ['GET', 'read', { path: `/${'x/'.repeat(3000)}` }],
    ['PUT', 'write', { path: `/${'x/'.repeat(3000)}` }],
    ['GET', 'read', { path: 'f', start: '-1' }],
    ['GET', 'read', { path: 'f', end: 'many' }],
    ['GET', 'list', { path: '.', recursive: 'maybe' }],
    ['PUT', 'write', { path: 'f', mode: 'rwx' }],
    ['PUT', 'write', { path: 'f', mode: '99' }],
    ['DELETE', 'delete', { path: '/', recursive: 'true' }],
    ['DELETE', 'delete', { path: '/../..//', recursive: 'true' }],
  ] as const)('%s %s %j is rejected', async (method, operation, query) => {
    const reply = await call(method, operation, query, method === 'PUT' ? { raw: 'x' } : {})
    expect(reply).toMatchObject({ status: 400, body: { error: 'bad_request', message: expect.any(String) } })
    expect(readdirSync(directory)).toEqual([])
  })

  test.each([
    ['rename', { source: 'a' }, 'dest is required'],
    ['rename', { source: 1, dest: 'b' }, 'source must be a string'],
    ['rename', { source: '', dest: 'b' }, 'source is empty'],
    ['copy', { source: 'a', dest: 'b\0' }, 'dest contains a NUL byte'],
    ['copy', { source: 'a', dest: 'b', recursive: 'true' }, 'recursive must be a boolean'],
    ['chmod', { path: 'a' }, 'mode is required'],
    ['chmod', { path: 'a', mode: 493 }, 'mode must be a string'],
    ['chmod', { path: 'a', mode: '0999' }, 'mode must be octal'],
    ['chown', { path: 'a' }, 'uid or gid is required'],
    ['chown', { path: 'a', uid: -1 }, 'uid must be'],
    ['chown', { path: 'a', uid: 'a:b' }, 'uid is not a name'],
    ['chown', { path: 'a', gid: '' }, 'gid is empty'],
  ])('POST %s %j is rejected', async (operation, body, message) => {
    const reply = await post(operation, body)
    expect(reply).toMatchObject({
      status: 400,
      body: { error: 'bad_request', message: expect.stringContaining(message) },
    })
  })
})

describe('reading', () => {
  beforeEach(() => writeFileSync(at('digits'), '0123456789'))

  test('returns the bytes and their number', async () => {
    const reply = await read('digits')
    expect(reply).toMatchObject({ status: 200, body: '0123456789' })
    expect(reply.headers).toMatchObject({ 'content-length': '10', 'accept-ranges': 'bytes' })
    expect(await read('empty')).toMatchObject({ status: 404, body: { code: 'ENOENT', path: at('empty') } })
    writeFileSync(at('empty'), '')
    expect(await read('empty')).toMatchObject({ status: 200, body: '' })
  })

  test('returns ranges', async () => {
    expect(await read('digits', { start: '2', end: '4' })).toMatchObject({ status: 206, body: '234' })
    const ranged = await read('digits', {}, { headers: { range: 'bytes=-3' } })
    expect(ranged).toMatchObject({ status: 206, body: '789' })
    expect(ranged.headers['content-range']).toBe('bytes 7-9/10')
    const outside = await read('digits', {}, { headers: { range: 'bytes=10-' } })
    expect(outside).toMatchObject({ status: 416, body: { error: 'range_not_satisfiable' } })
    expect(outside.headers['content-range']).toBe('bytes */10')
  })

  test('HEAD returns the same without the bytes', async () => {
    const reply = await call('HEAD', 'read', { path: 'digits' })
    expect(reply).toMatchObject({ status: 200, body: '' })
    expect(reply.headers['content-length']).toBe('10')
  })

  test('reads files of the kernel to their end', async () => {
    expect((await read('/proc/self/stat')).body).toMatch(/^\d+ \(perl\)/)
  })

  test('refuses what is not a file, and does not block on a pipe', async () => {
    expect(await read('.')).toMatchObject({ status: 400, body: { code: 'EISDIR' } })
    expect(await read('/dev/zero')).toMatchObject({ status: 400, body: { code: 'EINVAL' } })
    expect(await read('digits/x')).toMatchObject({ status: 400, body: { code: 'ENOTDIR' } })
  })
})

describe('writing', () => {
  test('creates directories and the file, and reports it', async () => {
    const made = await write('a/b/c', 'hello')
    expect(made).toMatchObject({ status: 201, body: { path: at('a/b/c'), size: 5, mode: '0644' } })
    expect(await write('a/b/c', 'again!')).toMatchObject({ status: 200, body: { size: 6, mode: '0644' } })
    expect(readFileSync(at('a/b/c'), 'utf8')).toBe('again!')
    expect(readdirSync(at('a/b'))).toEqual(['c'])
  })

  test('accepts any bytes, and more than a JSON body may have', async () => {
    const bytes = Buffer.alloc(3 * 1024 * 1024, Buffer.from([0, 255, 10, 13, 200]))
    expect((await write('big', bytes)).body.size).toBe(bytes.length)
    expect(readFileSync(at('big')).equals(bytes)).toBe(true)
    expect((await write('nothing', '')).body).toMatchObject({ size: 0 })
  })

  test('keeps the mode of a file unless another is given', async () => {
    await write('script', 'x', { mode: '0755' })
    expect(await write('script', 'y')).toMatchObject({ body: { mode: '0755' } })
    expect(await write('script', 'z', { mode: '600' })).toMatchObject({ body: { mode: '0600' } })
  })

  test('creates directories unless the flag is `false`', async () => {
    for (const flag of ['mkdirParents', 'mkdir']) {
      expect(await write('no/x', '', { [flag]: 'false' })).toMatchObject({ status: 404, body: { code: 'ENOENT' } })
      expect(await write(`yes-${flag}/x`, '', { [flag]: 'true' })).toMatchObject({ status: 201 })
    }
  })

  test('creates a single directory for a placeholder, without its parents', async () => {
    const place = (path: string) => write(path, '', { mkdirParents: 'false' })
    expect(await place('new/.keep')).toMatchObject({ status: 201, body: { path: at('new/.keep'), size: 0 } })
    expect(await remove('new/.keep')).toMatchObject({ status: 200 })
    expect(readdirSync(at('new'))).toEqual([])
    expect(await place('new/.keep')).toMatchObject({ status: 201 })
    expect(await place('a/b/.keep')).toMatchObject({ status: 404, body: { code: 'ENOENT' } })
    expect(await place('other/keep')).toMatchObject({ status: 404, body: { code: 'ENOENT' } })
    writeFileSync(at('file'), '')
    expect(await place('file/.keep')).toMatchObject({ status: 400, body: { code: 'ENOTDIR' } })
    expect(readdirSync(directory).sort()).toEqual(['file', 'new'])
  })

  test('writes to the target of a link', async () => {
    await write('real/file', 'old')
    await post('rename', { source: 'real/file', dest: 'real/target' })
    symlinkSync('real/target', at('link'))
    expect(await write('link', 'new')).toMatchObject({ status: 200 })
    expect(readFileSync(at('real/target'), 'utf8')).toBe('new')
    symlinkSync('circle', at('circle'))
    expect(await write('circle', '')).toMatchObject({ status: 400, body: { code: 'ELOOP' } })
  })

  test('refuses directories and devices', async () => {
    mkdirSync(at('d'))
    expect(await write('d', 'x')).toMatchObject({ status: 400, body: { code: 'EISDIR', path: at('d') } })
    expect(await write('/dev/null', 'x')).toMatchObject({ status: 400, body: { code: 'EINVAL' } })
    expect(await write('x'.repeat(300), 'x')).toMatchObject({ status: 400, body: { code: 'ENAMETOOLONG' } })
    expect(readdirSync(directory)).toEqual(['d'])
  })
})

describe('listing', () => {
  beforeEach(() => {
    mkdirSync(at('dir/sub'), { recursive: true })
    for (const name of ['dir/b.txt', 'dir/a.txt', 'dir/sub/c.txt', 'dir/d.md']) writeFileSync(at(name), name)
  })

  test('is sorted, with all attributes of each file', async () => {
    const reply = await list('dir')
    expect(names(reply)).toEqual(['dir/a.txt', 'dir/b.txt', 'dir/d.md', 'dir/sub'])
    expect(reply.body).toMatchObject({ path: at('dir'), count: 4 })
    expect(reply.body.entries[0]).toEqual({
      name: 'a.txt',
      path: at('dir/a.txt'),
      type: 'file',
      size: 9,
      mode: '0644',
      modTime: expect.stringMatching(/^\d{4}-.*Z$/),
      isDir: false,
      uid: process.getuid!(),
      gid: process.getgid!(),
    })
    expect(reply.body.entries[3]).toMatchObject({ type: 'directory', isDir: true })
  })

  test('of a file returns the file', async () => {
    expect((await list('dir/a.txt')).body).toMatchObject({ count: 1, entries: [{ name: 'a.txt', size: 9 }] })
    expect(await list('gone')).toMatchObject({ status: 404, body: { code: 'ENOENT' } })
    mkdirSync(at('empty'))
    expect((await list('empty')).body).toEqual({ path: at('empty'), entries: [], count: 0 })
  })

  test('is recursive and filters by pattern', async () => {
    const all = ['dir/a.txt', 'dir/b.txt', 'dir/d.md', 'dir/sub', 'dir/sub/c.txt']
    expect(names(await list('dir', { recursive: 'true' }))).toEqual(all)
    const texts = await list('dir', { recursive: '1', pattern: '*.txt' })
    expect(names(texts)).toEqual(['dir/a.txt', 'dir/b.txt', 'dir/sub/c.txt'])
    expect(names(await list('dir', { recursive: 'true', pattern: 'sub/*' }))).toEqual(['dir/sub/c.txt'])
  })

  test('works for many files', async () => {
    for (let index = 0; index < 3000; index++) writeFileSync(at(`dir/sub/${index}-${'x'.repeat(50)}`), '')
    const reply = await list('.', { recursive: 'true' })
    expect(reply.body.count).toBe(3006)
    expect(reply.body.entries).toHaveLength(3006)
    expect(reply.body.truncated).toBeUndefined()
  })
})

describe('changing', () => {
  beforeEach(() => {
    mkdirSync(at('tree/in'), { recursive: true })
    writeFileSync(at('tree/one'), '1')
    writeFileSync(at('tree/in/two'), '22')
  })

  test('delete', async () => {
    expect(await remove('tree')).toMatchObject({ status: 409, body: { error: 'conflict', code: 'ENOTEMPTY' } })
    expect((await remove('tree/one')).body).toEqual({ deleted: [at('tree/one')], count: 1 })
    expect((await remove('tree', { recursive: 'true' })).body).toEqual({
      deleted: [at('tree/in/two'), at('tree/in'), at('tree')],
      count: 3,
    })
    expect(await remove('tree')).toMatchObject({ status: 404, body: { code: 'ENOENT' } })
  })

  test('rename', async () => {
    const renamed = await post('rename', { source: 'tree', dest: 'wood' })
    expect(renamed).toMatchObject({ status: 200, body: { source: at('tree'), dest: at('wood') } })
    expect(readFileSync(at('wood/in/two'), 'utf8')).toBe('22')
    expect(await post('rename', { source: 'tree', dest: 'x' })).toMatchObject({ status: 404 })
    expect(await post('rename', { source: 'wood', dest: 'wood/in/x' })).toMatchObject({ status: 400 })
    mkdirSync(at('full/x'), { recursive: true })
    expect(await post('rename', { source: 'wood', dest: 'full' })).toMatchObject({ status: 409 })
  })

  test('copy', async () => {
    chmodSync(at('tree/one'), 0o4755)
    expect(await post('copy', { source: 'tree', dest: 'x' })).toMatchObject({ status: 400, body: { code: 'EISDIR' } })
    const copied = await post('copy', { source: 'tree', dest: 'twin', recursive: true })
    expect(copied).toMatchObject({ status: 200, body: { count: 4, totalBytes: 3 } })
    expect(copied.body.copied).toContainEqual({ source: at('tree/in/two'), dest: at('twin/in/two') })
    await post('copy', { source: 'tree/one', dest: 'exact', preserveAttrs: true })
    expect((await list('exact')).body.entries[0].mode).toBe('4755')
    expect((await list('twin/one')).body.entries[0].mode).toBe('0755')
    expect((await list('exact')).body.entries[0].modTime).toBe((await list('tree/one')).body.entries[0].modTime)
    const inside = await post('copy', { source: 'tree', dest: 'tree/in/x', recursive: true })
    expect(inside).toMatchObject({ status: 400, body: { code: 'EINVAL' } })
  })

  test('chmod and chown', async () => {
    const changed = await post('chmod', { path: 'tree', mode: '0700', recursive: true })
    expect(changed).toMatchObject({ status: 200, body: { count: 4 } })
    expect(changed.body.affected).toContainEqual({ path: at('tree/in/two'), mode: '0700' })
    expect((await list('tree/in/two')).body.entries[0].mode).toBe('0700')
    const owned = await post('chown', { path: 'tree', uid: process.getuid!(), gid: process.getgid!() })
    expect(owned.body).toMatchObject({ count: 1, affected: [{ path: at('tree'), uid: process.getuid!() }] })
    const nobody = await post('chown', { path: 'tree', uid: 'nobody-of-that-name' })
    expect(nobody).toMatchObject({ status: 400, body: { code: 'EINVAL', message: expect.stringContaining('no user') } })
  })
})
