// The process that parses the tar of a tenant must have almost nothing to give, in case the tar finds an error in it.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { lstatSync, mkdirSync, readdirSync, readFileSync, readlinkSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { makeTar, type TarEntry } from '../../support/image.ts'
import { drivers, removeTemporaryHome, temporaryDirectory } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const directory = temporaryDirectory()
const outside = `${directory}/outside`
const program = `${drivers}image/unpack.pl`
const running: ChildProcess[] = []
let number = 0

beforeAll(() => {
  mkdirSync(outside)
  writeFileSync(`${outside}/secret`, 'secret')
})

afterEach(async () => {
  for (const child of running.splice(0)) {
    if (child.exitCode !== null || child.signalCode !== null) continue
    const ended = new Promise((resolve) => child.once('exit', resolve))
    child.kill('SIGKILL')
    await ended
  }
})

afterAll(() => removeTemporaryHome(directory))

function target(): string {
  const place = `${directory}/layer-${number++}`
  mkdirSync(place)
  return place
}

function unpack(tar: Buffer, { place = target(), files = 1000, bytes = 10_000_000 } = {}) {
  const args = [program, process.arch, place, String(files), String(bytes)]
  return { place, ...spawnSync('perl', args, { input: tar, encoding: 'utf8', maxBuffer: 2 ** 20 }) }
}

/** Starts the unpacker with an input that does not end, and returns the pid of the process that reads it. */
async function startWaiting(place: string): Promise<number> {
  const child = spawn('perl', [program, process.arch, place, '1000', '1000000'], {
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  running.push(child)
  let parser = 0
  await until(() => {
    parser = descendants(child.pid!).find((pid) => /^Seccomp:\t2$/m.test(status(pid))) ?? 0
    return parser !== 0
  })
  return parser
}

function descendants(pid: number): number[] {
  const text = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8')
  const children = text.split(' ').filter(Boolean).map(Number)
  return [...children, ...children.flatMap(descendants)]
}

function status(pid: number): string {
  return readFileSync(`/proc/${pid}/status`, 'utf8')
}

test.runIf(isRoot())('has namespaces, five capabilities, a filter and no file but its target', async () => {
  const place = target()
  const pid = await startWaiting(place)
  const text = status(pid)
  expect(text).toMatch(/^NoNewPrivs:\t1$/m)
  // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETFCAP
  for (const set of ['CapEff', 'CapPrm', 'CapBnd']) expect(text).toContain(`${set}:\t000000008000001b\n`)
  expect(text).toMatch(/^NSpid:\t\d+\t1$/m)
  for (const kind of ['mnt', 'net', 'pid', 'ipc', 'uts', 'cgroup'])
    expect(readlinkSync(`/proc/${pid}/ns/${kind}`)).not.toBe(readlinkSync(`/proc/self/ns/${kind}`))
  const mounts = readFileSync(`/proc/${pid}/mountinfo`, 'utf8').trim().split('\n')
  expect(mounts.length).toBe(1)
  expect(mounts[0]).toMatch(/ \/ \S*nosuid,nodev,noexec/)
  expect(statSync(`/proc/${pid}/root`).ino).toBe(statSync(place).ino)
  const files = readdirSync(`/proc/${pid}/fd`).map((name) => readlinkSync(`/proc/${pid}/fd/${name}`))
  expect(files.filter((file) => !/^(pipe:|socket:|\/dev\/null|\/null)/.test(file))).toEqual([])
  const limits = readFileSync(`/proc/${pid}/limits`, 'utf8')
  for (const line of [
    /Max cpu time +3600 /,
    /Max file size +1000000 /,
    /Max core file size +0 /,
    /Max open files +16 /,
  ])
    expect(limits).toMatch(line)
  expect(limits).toMatch(/Max address space +1342177280 /)
})

test.runIf(isRoot())('drops its privileges also where namespaces are not available', async () => {
  const place = target()
  const prefix = ['--bounding-set=-sys_admin', 'perl']
  const child = spawn('setpriv', [...prefix, program, process.arch, place, '1000', '1000000'], { stdio: 'pipe' })
  running.push(child)
  let text = ''
  await until(() => {
    text =
      descendants(child.pid!)
        .map(status)
        .find((found) => /^Seccomp:\t2$/m.test(found)) ?? ''
    return text !== ''
  })
  expect(text).toContain('CapEff:\t000000008000001b\n')
  expect(text).toMatch(/^NoNewPrivs:\t1$/m)
  const ended = new Promise((resolve) => child.once('exit', resolve))
  child.stdin.end(makeTar([{ name: 'a/b', content: 'x' }, { name: 'a/.wh.c' }]))
  expect(await ended).toBe(0)
  expect(readdirSync(`${place}/a`).sort()).toEqual(['b', 'c'])
})

test('ends with its parent', async () => {
  const pid = await startWaiting(target())
  running[0]!.kill('SIGKILL')
  await until(() => {
    try {
      return /^State:\tZ/m.test(status(pid))
    } catch {
      return true
    }
  })
  expect(running[0]!.pid).not.toBe(pid)
})

test.each<[string, TarEntry[]]>([
  [
    'devices',
    [
      { name: 'dev/mem', type: 'character' },
      { name: 'dev/sda', type: 'block' },
    ],
  ],
  [
    'a device over a directory',
    [
      { name: 'dev/', type: 'directory' },
      { name: 'dev', type: 'block' },
    ],
  ],
])('creates no %s', (_, entries) => {
  const { place, status: code } = unpack(makeTar(entries))
  expect(code).toBe(0)
  const found = readdirSync(place, { recursive: true }).map((name) => lstatSync(`${place}/${name}`))
  expect(found.filter((entry) => entry.isCharacterDevice() || entry.isBlockDevice())).toEqual([])
})

test('creates pipes without opening them', () => {
  const { place, status: code } = unpack(
    makeTar([
      { name: 'pipe', type: 'fifo' },
      { name: 'pipe', type: 'fifo' },
      { name: 'link', type: 'link', link: 'pipe' },
      { name: 'pipe', content: 'replaced' },
    ]),
  )
  expect(code).toBe(0)
  expect([readFileSync(`${place}/pipe`, 'utf8'), lstatSync(`${place}/link`).isFIFO()]).toEqual(['replaced', true])
})

test('keeps the setuid bit in the layer and changes no file of the host', () => {
  const before = statSync('/bin/sh')
  const { place, status: code } = unpack(
    makeTar([
      { name: 'bin', type: 'symlink', link: '/bin' },
      { name: 'usr/bin/', type: 'directory' },
      { name: 'own', content: 'x', mode: 0o6755 },
      { name: 'sh', type: 'symlink', link: '/bin/sh' },
      { name: 'sh', type: 'symlink', link: '/bin/sh', mode: 0o6755 },
    ]),
  )
  expect(code).toBe(0)
  expect(statSync(`${place}/own`).mode & 0o7777).toBe(0o6755)
  expect([statSync('/bin/sh').mode, statSync('/bin/sh').ctimeMs]).toEqual([before.mode, before.ctimeMs])
})

test('marks opaque directories inside of the layer only', () => {
  const {
    place,
    status: code,
    stderr,
  } = unpack(
    makeTar([
      { name: 'real/', type: 'directory' },
      { name: 'inside', type: 'symlink', link: '/real' },
      { name: 'inside/.wh..wh..opq' },
      { name: 'outside', type: 'symlink', link: outside },
      { name: `.${outside}/`, type: 'directory' },
      { name: 'outside/.wh..wh..opq' },
    ]),
  )
  expect([code, stderr]).toEqual([0, ''])
  const attribute = isRoot() ? 'trusted.overlay.opaque' : 'user.overlay.opaque'
  const read = (path: string) => {
    const script = 'import os,sys; print(sys.argv[2] in os.listxattr(sys.argv[1]))'
    return spawnSync('python3', ['-c', script, path, attribute], { encoding: 'utf8' }).stdout.trim()
  }
  expect([read(`${place}/real`), read(`${place}${outside}`), read(outside)]).toEqual(['True', 'True', 'False'])
})

test.each<[string, Buffer, number]>([
  ['a file larger than allowed', makeTar([{ name: 'x', size: 20_000_000 }]), 21],
  ['a file of eight exabytes', makeTar([{ name: 'x', size: 2 ** 52 }]), 20],
  ['an extended size', makeTar([{ name: 'x', extended: { size: '99999999999999' } }]), 21],
  ['an extended size beyond 64 bits', makeTar([{ name: 'x', extended: { size: '9'.repeat(40) } }]), 20],
  ['a negative extended size', makeTar([{ name: 'x', extended: { size: '-1' } }]), 20],
  ['a sparse file', makeTar([{ name: 'x', extended: { 'GNU.sparse.realsize': '1000000000000' } }]), 22],
  ['too many files', makeTar(Array.from({ length: 1001 }, (_, at) => ({ name: `f${at}` }))), 21],
  ['too many directories', makeTar([{ name: 'd/'.repeat(1001) }]), 21],
  ['a whiteout with a slash', makeTar([{ name: '.wh.a/b', content: 'x' }]), 0],
  ['a whiteout of a parent', makeTar([{ name: '.wh...' }]), 20],
])('limits %s', (_, tar, code) => {
  const { place, status: found } = unpack(tar)
  expect(found).toBe(code)
  const files = readdirSync(place, { recursive: true }).map((name) => lstatSync(`${place}/${name}`))
  expect(files.reduce((sum, { blocks }) => sum + blocks * 512, 0)).toBeLessThan(10_000_000)
})

test.each([
  ['a record longer than its header', '99 path=x\n'],
  ['a record of length 0', '0 path=x\n'],
  ['a huge length', '9999999 path=x\n'],
  ['a length beyond 64 bits', `${'9'.repeat(30)} path=x\n`],
  ['no length', ' path=x\n'],
  ['no value', '8 pathx\n'],
  ['no end', '9 path=xx'],
])('refuses an extended header with %s', (_, text) => {
  const tar = makeTar([{ name: 'pax', content: text }, { name: 'x' }])
  tar.write('x', 156)
  tar.fill(' ', 148, 156)
  const sum = tar.subarray(0, 512).reduce((total, byte) => total + byte, 0)
  tar.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148)
  expect(unpack(tar).status).toBe(20)
})

test('does not load Perl code of the image', () => {
  const places = spawnSync('perl', ['-e', 'print join "\\n", @INC'], { encoding: 'utf8' }).stdout.split('\n')
  const mark = 'die "loaded"; 1;'
  const names = ['Errno.pm', 'Carp.pm', 'utf8.pm', 'Config.pm', 'strict.pm', 'warnings.pm', 'unicore/Name.pl']
  const entries = places.flatMap((place) => names.map((name) => ({ name: `${place}/${name}`.slice(1), content: mark })))
  const { status: code, stderr } = unpack(
    makeTar([...entries, { name: '\u00e9\u{1f600}', content: 'x' }, { name: '../x' }]),
  )
  expect(code).toBe(20)
  expect(stderr).not.toContain('loaded')
})

test('leaves nothing mounted', () => {
  const { place } = unpack(makeTar([{ name: 'x', content: 'x' }]))
  expect(readFileSync('/proc/self/mountinfo', 'utf8')).not.toContain(place)
  rmSync(place, { recursive: true })
  expect(readdirSync(outside)).toEqual(['secret'])
})
