import { existsSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmdirSync } from 'node:fs'
import { connect } from 'node:net'
import { constants, tmpdir } from 'node:os'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { findCommandPath, findCommandPid, signalCommand } from '../../../src/drivers/box/enter/command.ts'
import { enterSpares } from '../../../src/drivers/box/enter/spare.ts'
import { boxNetwork, networkTable } from '../../../src/drivers/box/network.ts'
import { boxPaths } from '../../../src/drivers/box/paths.ts'
import { cgroupDriver, cgroupName, removeCgroups } from '../../../src/drivers/host/cgroup.ts'
import { isRoot, run as runOnHost } from '../../../src/drivers/host/process.ts'
import { findProcess, listProcesses } from '../../../src/drivers/host/process-list.ts'
import type { BoxSpec } from '../../../src/model/sandbox/box.ts'
import { type BoxBench, listLinks, openBoxBench } from '../../support/box.ts'
import { isRunning, processesBelow } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const isFull = isRoot()
let bench: BoxBench
let spec: BoxSpec

beforeAll(async () => {
  bench = await openBoxBench()
  spec = await bench.newBox()
})
afterAll(() => bench?.remove())

/** Also on hosts whose mounts are private, where an unmount of the host does not reach the box. */
test.runIf(isFull)('a box keeps no file system of the host in use that it does not need', async () => {
  const place = mkdtempSync(`${tmpdir()}/berth mount-`)
  await runOnHost('mount', ['-t', 'tmpfs', 'none', place])
  try {
    const box = await bench.newBox()
    await bench.run(box, ['true'])
    const mountsOf = ({ pid }: { pid: number }) => readFileSync(`/proc/${pid}/mountinfo`, 'utf8')
    const isApart = ({ pid }: { pid: number }) =>
      readlinkSync(`/proc/${pid}/ns/mnt`) !== readlinkSync('/proc/self/ns/mnt')
    const apart = processesBelow(bench.home.path).filter(isApart)
    const name = place.replaceAll(' ', '\\040')
    expect(apart.some((each) => mountsOf(each).includes('overlay'))).toBe(true)
    expect(mountsOf({ pid: process.pid })).toContain(name)
    expect(apart.filter((each) => mountsOf(each).includes(` ${name} `))).toEqual([])
    await bench.boxes.removeBox(box)
  } finally {
    await runOnHost('umount', [place])
    rmdirSync(place)
  }
})

describe('commands', () => {
  test('return their output and exit code', async () => {
    expect(await bench.sh(spec, 'echo out; echo err >&2; exit 7')).toEqual({ code: 7, out: 'out\n', err: 'err\n' })
    expect(await bench.run(spec, ['true'])).toEqual({ code: 0, out: '', err: '' })
    expect(await bench.run(spec, ['cat'], { input: 'through' })).toMatchObject({ code: 0, out: 'through' })
  })

  test('exit with 127 for a missing program and 126 for one that cannot be executed', async () => {
    const missing = { code: 127, out: '', err: 'exec: "no-such-program": not found\n' }
    expect(await bench.run(spec, ['no-such-program'])).toEqual(missing)
    expect((await bench.run(spec, ['/no/such'])).code).toBe(127)
    expect(await bench.run(spec, ['/etc/passwd'])).toMatchObject({ code: 126, err: expect.stringContaining('denied') })
    expect((await bench.run(spec, ['/etc'])).code).toBe(126)
    expect(await bench.run(spec, ['true'], { dir: '/no/such' })).toMatchObject({
      code: 126,
      err: expect.stringContaining('/no/such'),
    })
  })

  test.each([
    ['TERM', 143],
    ['KILL', 137],
    ['SEGV', 139],
  ])('exit with 128 plus the signal number after SIG%s', async (signal, code) => {
    expect((await bench.sh(spec, `kill -${signal} $$`)).code).toBe(code)
  })

  test('get their arguments unchanged', async () => {
    const words = ['', ' ', '$HOME', "it's", 'a%00b%25', 'ü\n', 'x'.repeat(100_000)]
    const { out } = await bench.run(spec, ['printf', '%s|', ...words])
    expect(out).toBe(words.map((word) => `${word}|`).join(''))
    const many: [string, ...string[]] = ['sh', '-c', 'echo $#', 'sh', ...Array<string>(3000).fill('y'.repeat(100))]
    expect((await bench.run(spec, many)).out).toBe('3000\n')
  })

  test('get a clean environment plus the variables of the caller', async () => {
    const { out } = await bench.run(spec, ['env'], { env: { TERM: 'xterm', EMPTY: '', EQUALS: 'a=b', USER: 'me' } })
    expect(
      Object.fromEntries(
        out
          .trim()
          .split('\n')
          .map((line) => line.split(/=(.*)/s).slice(0, 2)),
      ),
    ).toEqual({
      PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/.sprite/bin',
      HOME: '/home/sprite',
      USER: 'me',
      LANG: 'C.UTF-8',
      TERM: 'xterm',
      EMPTY: '',
      EQUALS: 'a=b',
    })
  })

  test('start in the home directory with umask 022, as root, in a session of their own', async () => {
    const { out } = await bench.sh(spec, 'pwd; umask; id -u; id -G; hostname; ps -o sid= -p $$ | tr -d " "; echo $$')
    const [dir, mask, uid, groups, hostname, session, pid] = out.split('\n')
    expect([dir, mask, uid, groups, hostname]).toEqual(['/home/sprite', '0022', '0', '0', spec.hostname])
    expect(session).toBe(pid)
    expect((await bench.run(spec, ['pwd'], { dir: '/var/lib' })).out).toBe('/var/lib\n')
  })

  test('get the signals that are sent to the process on the host', async () => {
    const child = bench.boxes.spawnInBox(spec, {
      argv: [
        'sh',
        '-c',
        'trap "echo usr1" USR1; trap "echo term; exit 3" TERM; echo ready; while :; do sleep 0.01; done',
      ],
    })
    let out = ''
    child.stdout!.on('data', (data) => {
      out += data
    })
    await until(() => out.includes('ready'))
    child.kill('SIGUSR1')
    await until(() => out.includes('usr1'))
    child.kill('SIGTERM')
    expect(await new Promise((resolve) => child.on('close', resolve))).toBe(3)
    expect(out).toContain('term')
  })

  test('get every kind of signal, also SIGSTOP and SIGCONT', async () => {
    const names = [
      'SIGABRT',
      'SIGPIPE',
      'SIGIO',
      'SIGSEGV',
      'SIGTSTP',
      'SIGTTIN',
      'SIGURG',
      'SIGPWR',
      'SIGCONT',
    ] as const
    const script =
      '$| = 1; $SIG{$_} = sub { print "$_[0]\n" } for @ARGV; print "$$ ready\n"; select undef, undef, undef, 1 while 1'
    const argv = names.map((name) => name.slice(3))
    const child = bench.boxes.spawnInBox(spec, { argv: ['perl', '-e', script, ...argv, 'NUM40'] })
    let out = ''
    child.stdout!.on('data', (data) => {
      out += data
    })
    const tell = async (signal: number, word: string) => {
      out = ''
      signalCommand(child.pid!, signal)
      await until(() => out === `${word}\n`)
    }
    await until(() => out.includes('ready'))
    expect(findCommandPid(child.pid!)).toBe(Number.parseInt(out, 10))
    const file = `/proc/${Number.parseInt(out, 10)}/stat`
    const state = async () => (await bench.sh(spec, `cut -d ' ' -f 3 ${file}`)).out
    for (const name of names) await tell(constants.signals[name], name.slice(3))
    await tell(40, 'NUM40')
    signalCommand(child.pid!, constants.signals.SIGSTOP)
    await until(async () => (await state()) === 'T\n')
    await tell(constants.signals.SIGCONT, 'CONT')
    expect(await state()).not.toBe('T\n')
    child.kill('SIGTERM')
    expect(await new Promise((resolve) => child.on('close', resolve))).toBe(143)
  })

  test('show the full path of their program, also for a relative one', async () => {
    await bench.sh(spec, 'mkdir -p /srv/deep && ln -sf /usr/bin/sleep /srv/deep/nap')
    const paths: [string, string][] = [
      ['sleep', '/usr/bin/sleep'],
      ['/usr/bin/sleep', '/usr/bin/sleep'],
      ['./deep/nap', '/srv/deep/nap'],
    ]
    for (const [given, path] of paths) {
      const child = bench.boxes.spawnInBox(spec, { argv: [given, '100'], dir: '/srv' })
      await until(() => findCommandPath(child.pid!) === path)
      child.kill('SIGTERM')
      await new Promise((resolve) => child.on('close', resolve))
    }
  })

  test('get signals that were sent while they were starting', async () => {
    for (let round = 0; round < 20; round += 1) {
      const child = bench.boxes.spawnInBox(spec, { argv: ['sleep', '100'] })
      child.kill('SIGTERM')
      const [code, signal] = await new Promise<unknown[]>((resolve) => child.on('close', (...how) => resolve(how)))
      // The first one was started from scratch, and may not have installed its handlers yet.
      expect([143, 'SIGTERM']).toContain(code ?? signal)
    }
  })

  test('start at once in a spare process, which ends when it is not used', async () => {
    const spares = enterSpares(1000)
    const own = listProcesses().map(({ pid }) => pid)
    const started = () => listProcesses().filter(({ pid, parent }) => parent === process.pid && !own.includes(pid))
    const request = { privileges: ['standard'], cgroup: [], dir: ['/'], env: ['PATH=/usr/bin'], argv: ['true'] }
    const first = spares.start({ ...request, way: ['none'], uid: [String(process.getuid!())], machine: [process.arch] })
    expect(await new Promise((resolve) => first.on('close', resolve))).toBe(0)
    await until(() => started().length > 0)
    await until(() => started().length === 0)
  })

  test('start even when the spare process was killed', async () => {
    const children = () => listProcesses().filter(({ parent, name }) => parent === process.pid && name === 'perl')
    await bench.run(spec, ['true'])
    await until(() => children().length > 0)
    for (const { pid } of children()) process.kill(pid, 'SIGKILL')
    await until(() => children().length === 0)
    expect((await bench.run(spec, ['echo', 'here'])).out).toBe('here\n')
  })

  test('end with their process group when the process on the host is killed', async () => {
    const child = bench.boxes.spawnInBox(spec, { argv: ['sh', '-c', 'sleep 987 & echo ready; wait'] })
    await new Promise((resolve) => child.stdout!.once('data', resolve))
    const listed = () => bench.sh(spec, 'pgrep -f "sleep 98[7]" | wc -l')
    await until(async () => (await listed()).out.trim() === '2')
    child.kill('SIGKILL')
    await until(async () => (await listed()).out.trim() === '0')
  })

  test('report that the box is not running', async () => {
    const stopped = await bench.newBox()
    await bench.boxes.stopBox(stopped.id)
    expect(await bench.run(stopped, ['true'])).toMatchObject({ code: 126, err: 'the sandbox is not running\n' })
  })
})

describe('the filesystem', () => {
  test('is that of a complete system and writable everywhere', async () => {
    const places = [
      '/etc/x',
      '/usr/local/bin/x',
      '/home/sprite/x',
      '/root/x',
      '/var/lib/x',
      '/tmp/x',
      '/opt/x',
      '/run/x',
    ]
    for (const place of places) expect((await bench.sh(spec, `echo 1 > ${place} && cat ${place}`)).out).toBe('1\n')
    expect((await bench.sh(spec, 'getent passwd root nobody | cut -d: -f1')).out).toBe('root\nnobody\n')
    expect((await bench.sh(spec, 'stat -c "%a %u" / /tmp /root /home/sprite /dev/shm')).out).toBe(
      '755 0\n1777 0\n700 0\n755 0\n1777 0\n',
    )
  })

  test.runIf(isFull)('allows changes of programs without changing the host', async () => {
    const before = readFileSync('/usr/bin/tty')
    expect(
      (await bench.sh(spec, 'chown 33:33 /usr/bin/tty && echo changed > /usr/bin/tty && stat -c %u /usr/bin/tty')).out,
    ).toBe('33\n')
    expect((await bench.sh(spec, 'rm /usr/bin/link; ls /usr/bin/link')).code).not.toBe(0)
    expect(readFileSync('/usr/bin/tty')).toEqual(before)
    expect(existsSync('/usr/bin/link')).toBe(true)
  })

  test.runIf(isFull)('allows the installation of a package', async () => {
    const script = `
      mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin && cd /tmp &&
      printf 'Package: berth-probe\\nVersion: 1\\nArchitecture: all\\nMaintainer: x\\nDescription: x\\n' > p/DEBIAN/control &&
      printf '#!/bin/sh\\necho installed\\n' > p/usr/bin/berth-probe && chmod 755 p/usr/bin/berth-probe &&
      dpkg-deb -b p p.deb > /dev/null && dpkg -i p.deb > /dev/null && berth-probe && dpkg -s berth-probe | grep Status`
    expect((await bench.sh(spec, script)).out).toBe('installed\nStatus: install ok installed\n')
    expect(existsSync('/usr/bin/berth-probe')).toBe(false)
  })

  test('survives a stop, as does the host name', async () => {
    await bench.sh(spec, 'echo kept > /etc/kept; echo kept > /usr/local/kept')
    await bench.boxes.stopBox(spec.id)
    expect(await bench.boxes.inspectBox(spec.id)).toEqual({ is: 'down' })
    await bench.boxes.ensureBox(spec)
    expect((await bench.sh(spec, 'cat /etc/kept /usr/local/kept')).out).toBe('kept\nkept\n')
    expect((await bench.sh(spec, 'ls /run')).out).toBe('lock\n')
  })

  test('does not reveal paths of the host in the list of mounts', async () => {
    expect((await bench.sh(spec, 'cat /proc/mounts')).out).not.toContain(bench.directory)
  })

  test('shows files of the platform read-only', async () => {
    expect((await bench.sh(spec, 'ls -A /.sprite /.sprite/logs')).out).toMatch(
      /api.sock\nbin\ncheckpoints\ninside\nllm.txt\nlogs\npolicy\nversion.txt\n[\s\S]*services\n/,
    )
    const closed = await bench.sh(spec, 'find /.sprite -type d ! -perm -o=rx')
    expect(closed.out).toBe('')
    for (const attempt of [
      'rm -rf /.berth',
      'mv /.berth /x',
      'touch /.berth/service/x',
      'touch /.sprite/policy/x',
      'touch /.sprite/inside/x',
      'rm /.sprite/api.sock',
      'rmdir /.sprite/logs',
    ])
      expect((await bench.sh(spec, attempt)).code, attempt).not.toBe(0)
  })

  test('cannot redirect a mount of the next start with a link', async () => {
    const broken = await bench.newBox()
    await bench.sh(broken, 'cp -a /etc /etc2; rm -rf /etc 2>/dev/null; mv /etc /etc3; ln -s /oldroot/tmp /etc')
    await bench.boxes.stopBox(broken.id)
    await bench.boxes.ensureBox(broken).catch(() => undefined)
    expect(existsSync('/tmp/resolv.conf')).toBe(false)
  })
})

describe('supervision', () => {
  test('starts no process when the box is running', async () => {
    const pid = await bench.pidOf(spec)
    await Promise.all([bench.boxes.ensureBox(spec), bench.boxes.ensureBox(spec)])
    expect(await bench.pidOf(spec)).toBe(pid)
  })

  test('tolerates operations on an unknown box', async () => {
    expect(await bench.boxes.inspectBox('unknown')).toEqual({ is: 'absent' })
    await bench.boxes.stopBox('unknown')
    await bench.boxes.removeBox(bench.newSpec())
  })

  test.each(['the first process', 'bwrap', 'the process that s6 supervises', 's6-supervise'])(
    'restarts the box when %s is killed',
    async (victim) => {
      await bench.sh(spec, `echo '${victim}' > /etc/victim`)
      const first = await bench.pidOf(spec)
      const bwrap = findProcess(first)!.parent
      const watched = findProcess(bwrap)!.parent
      const supervise = findProcess(watched)!.parent
      const pids: Record<string, number> = {
        'the first process': first,
        bwrap,
        'the process that s6 supervises': watched,
        's6-supervise': supervise,
      }
      process.kill(pids[victim]!, 'SIGKILL')
      await until(async () => ![first, undefined].includes(await bench.pidOf(spec)) && !isRunning(first))
      expect((await bench.sh(spec, 'cat /etc/victim')).out).toBe(`${victim}\n`)
      // No process of the earlier run is left.
      await until(() => listProcesses().filter(({ parent }) => parent === first).length === 0)
    },
  )

  test('ends all processes inside when it stops', async () => {
    const box = await bench.newBox()
    const command = bench.run(box, ['sleep', '1000'])
    await until(async () => (await bench.sh(box, 'pgrep -x sleep')).code === 0)
    await bench.boxes.stopBox(box.id)
    expect((await command).code).toBe(137)
  })

  test.runIf(isFull)('starts the box again when only its disk is left, as after a reboot', async () => {
    const group = cgroupName(bench.home, `sandbox-${spec.id}`)
    await bench.supervisor.stopTree()
    await removeCgroups(bench.home)
    await runOnHost('nft', ['delete', 'table', 'inet', networkTable(bench.home)])
    await bench.supervisor.ensureTree()
    const pid = await bench.pidOf(spec)
    expect(listLinks()).toContain(boxNetwork(bench.home, spec.slot).link)
    expect((await runOnHost('nft', ['list', 'tables'])).stdout).toContain(networkTable(bench.home))
    expect(readFileSync(`/proc/${pid}/cgroup`, 'utf8')).toContain(group)
    const [memory] = cgroupDriver().ensureCgroup(group, spec.limits)
    const directory = memory!.replace('/cgroup.procs', '')
    const limit = ['memory.limit_in_bytes', 'memory.max'].find((file) => existsSync(`${directory}/${file}`))!
    expect(readFileSync(`${directory}/${limit}`, 'utf8').trim()).toBe(String(spec.limits.memoryMb * 1024 * 1024))
  })
})

test('has both loopback addresses', async () => {
  const talk = `use Socket qw(:DEFAULT pack_sockaddr_in6 inet_pton); my $at = pack_sockaddr_in6(81, inet_pton(10, '::1'));
    socket(S, 10, 1, 6); bind(S, $at) && listen(S, 1) or die $!; socket(C, 10, 1, 6); connect(C, $at) or die $!; print "own"`
  expect(await bench.run(spec, ['perl', '-e', talk])).toMatchObject({ out: 'own', err: '' })
})

describe.runIf(isFull)('the network', () => {
  test('lets the host reach listeners inside, also those on loopback', async () => {
    const serve = (family: number, address: string) =>
      bench.run(spec, [
        'perl',
        '-e',
        `use Socket qw(:DEFAULT pack_sockaddr_in6 inet_pton); my $address = inet_pton(${family}, '${address}');
        my $at = ${family} == 2 ? sockaddr_in(8080, $address) : pack_sockaddr_in6(8080, $address);
        socket(S, ${family}, 1, 6); setsockopt(S, 1, 2, 1); bind(S, $at) or die; listen(S, 5); accept(C, S); syswrite C, "hello"; close C`,
      ])
    for (const [family, address] of [
      [2, '127.0.0.1'],
      [2, '0.0.0.0'],
      [10, '::'],
    ] as const) {
      const server = serve(family, address)
      await until(async () => (await bench.sh(spec, 'grep -q ":1F90 0*:0000 0A" /proc/net/tcp*')).code === 0)
      expect(await readFrom(bench.boxes.addressOf(spec), 8080)).toBe('hello')
      expect((await server).code).toBe(0)
    }
  })

  test('allows low ports and answers pings', async () => {
    expect(
      (
        await bench.run(spec, [
          'perl',
          '-e',
          'use Socket; socket(S, 2, 1, 6); bind(S, sockaddr_in(80, INADDR_ANY)) or die $!',
        ])
      ).code,
    ).toBe(0)
  })

  test('cannot be changed from inside', async () => {
    for (const attempt of [
      'ip link set eth0 down',
      'ip addr add 100.64.0.1/10 dev eth0',
      'nft flush ruleset',
      'echo 0 > /proc/sys/net/ipv4/conf/eth0/route_localnet',
    ])
      expect((await bench.sh(spec, attempt)).code, attempt).not.toBe(0)
  })
})

function readFrom(host: string, port: number): Promise<string> {
  return new Promise((resolve, reject) => {
    let text = ''
    const socket = connect(port, host)
    socket.setTimeout(30_000, () => socket.destroy(new Error('no answer')))
    socket.on('data', (data) => {
      text += data
    })
    socket.on('error', reject).on('close', () => resolve(text))
  })
}

test('is removed with the box', async () => {
  const box = await bench.newBox()
  await bench.sh(box, 'touch /etc/x; mkdir -m 0 /opt/closed; setsid sleep 1000 > /dev/null 2>&1 &')
  const first = await bench.pidOf(box)
  await bench.boxes.removeBox(box)
  await bench.boxes.removeBox(box)
  expect(await bench.boxes.inspectBox(box.id)).toEqual({ is: 'absent' })
  expect(isRunning(first)).toBe(false)
  const firstUid = bench.home.uidStart + box.slot * 65_536
  if (isFull)
    expect(
      listProcesses().filter(({ pid }) => Number(ownerOf(pid)) >= firstUid && Number(ownerOf(pid)) < firstUid + 65_536),
    ).toEqual([])
  expect(listLinks()).not.toContain(boxNetwork(bench.home, box.slot).link)
  expect(readFileSync('/proc/self/mountinfo', 'utf8')).not.toContain(box.id)
  expect(cgroupDriver().listCgroups()).not.toContain(cgroupName(bench.home, `sandbox-${box.id}`))
  expect(existsSync(boxPaths(bench.home, box.id).directory)).toBe(false)
  expect(existsSync(`${bench.home.tree}/sandbox-${box.id}`)).toBe(false)
  await until(() => readdirSync(`${bench.home.path}/trash`).length === 0)
})

function ownerOf(pid: number): string | undefined {
  try {
    return /^Uid:\t(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]
  } catch {
    return undefined
  }
}

test('passes no descriptor of the platform into a box', async () => {
  const { out } = await bench.sh(spec, 'ls /proc/self/fd; ls /proc/1/fd | wc -l')
  expect(out.split('\n').slice(0, 4)).toEqual(['0', '1', '2', '3']) // the last one belongs to ls itself
})

test('shuts down cleanly when it is stopped right after its start', async () => {
  const box = bench.newSpec()
  for (let turn = 0; turn < 15; turn++) {
    await bench.boxes.ensureBox(box)
    await bench.boxes.stopBox(box.id)
    // After a kill the state would contain a signal.
    const state = await bench.supervisor.inspectService(boxPaths(bench.home, box.id).supervisedName)
    expect(state).toMatchObject({ is: 'down', exitCode: 0 })
  }
})
