// Attempts to escape from a box or to reach others. Each is made as root in the box.
import { spawn } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:net'
import { networkInterfaces } from 'node:os'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { boxNetwork } from '../../../src/drivers/box/network.ts'
import { boxPaths } from '../../../src/drivers/box/paths.ts'
import { cgroupDriver } from '../../../src/drivers/host/cgroup.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import type { BoxSpec } from '../../../src/model/sandbox/box.ts'
import { type BoxBench, openBoxBench } from '../../support/box.ts'
import type { ExitResult } from '../../support/child.ts'
import { startNeighbor } from '../../support/neighbor.ts'
import { isRunning } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const isFull = isRoot()
let bench: BoxBench
let box: BoxSpec
let other: BoxSpec

beforeAll(async () => {
  bench = await openBoxBench()
  writeFileSync(bench.home.tokenFile, 'secret of the host', { mode: 0o600 })
  box = await bench.newBox()
  other = await bench.newBox()
})
afterAll(() => bench?.remove())

const sh = (script: string): Promise<ExitResult> => bench.sh(box, script)

async function expectRefused(script: string): Promise<void> {
  const ended = await sh(script)
  expect({ script, code: ended.code, out: ended.out }).toEqual({ script, code: expect.any(Number), out: '' })
  expect(ended.code, script).not.toBe(0)
}

const numbers = {
  x64: { open_by_handle_at: 304, keyctl: 250, add_key: 248, bpf: 321, perf: 298, uffd: 323, uring: 425, ptrace: 101 },
  arm64: { open_by_handle_at: 265, keyctl: 219, add_key: 217, bpf: 280, perf: 241, uffd: 282, uring: 425, ptrace: 117 },
}[process.arch as 'x64' | 'arm64']

/** Makes a system call and prints its errno. */
async function errorOf(call: string): Promise<string> {
  const { out } = await bench.run(box, ['perl', '-e', `my $r = syscall(${call}); print $r < 0 ? $! + 0 : "allowed"`])
  return out
}

describe('files of the host', () => {
  test('are not visible: passwords, the token, the home directory of root', async () => {
    const { out } = await sh('cat /etc/shadow')
    expect(out).toMatch(/^root:\*:/)
    expect(out.split('\n').filter((line) => line !== '' && !/^[^:]+:\*:/.test(line))).toEqual([])
    for (const path of [bench.home.tokenFile, bench.home.path, boxPaths(bench.home, other.id).directory])
      await expectRefused(`cat ${path} 2>/dev/null || ls ${path}`)
    expect((await sh('ls -A /root /home')).out).toBe('/home:\nsprite\n\n/root:\n')
    expect((await sh('ls /etc/ssh /etc/ssl/private /usr/src 2>/dev/null')).out.replace('/usr/src:\n', '')).toBe('')
  })

  test('cannot be reached through the first process or through commands', async () => {
    await sh('touch /etc/in-the-box')
    expect((await sh('ls /proc/1/root/etc/in-the-box /proc/self/root/etc/in-the-box')).code).toBe(0)
    await expectRefused(`cat /proc/1/root${bench.home.tokenFile}`)
    await expectRefused(
      `for p in /proc/[0-9]*; do cat $p/cwd${bench.home.tokenFile} $p/root/../../../..${bench.home.tokenFile}; done 2>/dev/null; false`,
    )
  })

  test('cannot be reached by escaping a chroot', async () => {
    const attempt = `mkdir -p /tmp/jail; chroot /tmp/jail / 2>/dev/null
      perl -e 'mkdir "/tmp/j"; opendir(D, "/"); chroot "/tmp/j"; chdir D; chdir ".." for 1 .. 50; chroot "."; exec "cat", "${bench.home.tokenFile}"'`
    await expectRefused(attempt)
  })

  test('cannot be opened by file handles', async () => {
    expect(await errorOf(`${numbers.open_by_handle_at}, 3, my $h = pack("LLx128", 8, 1), 0`)).toBe('1')
  })

  test('cannot be read from devices', async () => {
    await expectRefused('mknod /tmp/disk b 254 0')
    await expectRefused('mknod /tmp/memory c 1 1')
    expect((await sh('ls /dev')).out.split('\n')).not.toContain('vda')
    await expectRefused('head -c 1 /dev/mem 2>/dev/null')
  })

  test('cannot be changed through the layers', async () => {
    const before = readFileSync('/etc/passwd', 'utf8')
    await sh('echo x >> /etc/passwd; echo x >> /usr/bin/env')
    expect(readFileSync('/etc/passwd', 'utf8')).toBe(before)
    expect((await bench.sh(other, 'grep -c ^x /etc/passwd; env true')).out).toBe('0\n')
  })
})

describe('processes of the host', () => {
  test('are not visible', async () => {
    const witness = bench.run(other, ['sleep', '4242'])
    await until(async () => (await bench.sh(other, 'pgrep -x sleep')).code === 0)
    const { out } = await sh('cat /proc/[0-9]*/cmdline | tr "\\0" " "')
    expect(out).toContain('s6-svscan')
    expect(out).not.toMatch(/sleep 4242|vitest|box-enter|bwrap/)
    await bench.sh(other, 'pkill -x sleep')
    await witness
  })

  test('cannot be signalled', async () => {
    const witness = spawn('sleep', ['1000'])
    await sh(`kill -9 ${witness.pid} ${process.pid}; kill -9 -1`)
    expect(isRunning(witness.pid!)).toBe(true)
    witness.kill('SIGKILL')
    expect((await bench.boxes.inspectBox(box.id)).is).toBe('up')
    expect((await bench.boxes.inspectBox(other.id)).is).toBe('up')
  })

  test('cannot be traced, while those inside can', async () => {
    const attach = (pid: number | string) => errorOf(`${numbers.ptrace}, 16, ${pid}, 0, 0`)
    expect(await attach(process.pid)).toBe('3')
    const { out } = await sh(
      `sleep 5 & perl -e 'my $r = syscall(${numbers.ptrace}, 16, $ARGV[0] + 0, 0, 0); print $r < 0 ? $! + 0 : "allowed"' $!; kill -9 $!`,
    )
    expect(out).toBe('allowed')
  })

  test('do not leak their environment into the box', async () => {
    await expectRefused('cat /proc/1/environ | tr "\\0" "\\n" | grep BERTH')
    await expectRefused('cat /proc/self/environ | tr "\\0" "\\n" | grep BERTH')
  })
})

describe('the kernel', () => {
  test.each([
    'mount -t tmpfs none /mnt',
    'mount --bind /etc /mnt',
    'mount -o remount,rw /.berth',
    'mount -t proc none /mnt',
    'umount /.berth',
    'umount -l /usr',
    'unshare -U true',
    'unshare -m true',
    'unshare -n true',
    'unshare -p --fork true',
    'bwrap --unshare-all --ro-bind / / true',
    'nsenter -t 1 -m true',
    'hostname changed',
    'date -s "2001-01-01" > /dev/null',
    'dmesg',
    'swapon /etc/passwd',
  ])('refuses: %s', expectRefused)

  test.each([
    '/proc/sys/kernel/core_pattern',
    '/proc/sys/kernel/hostname',
    '/proc/sys/kernel/panic',
    '/proc/sys/vm/drop_caches',
    '/proc/sys/net/ipv4/ip_forward',
    '/proc/sysrq-trigger',
    '/sys/kernel/uevent_helper',
    '/sys/fs/cgroup/cgroup.procs',
  ])('does not allow writing to %s', async (file) => {
    const isSetting = file.startsWith('/proc/sys/') && !file.endsWith('/drop_caches')
    const before = isSetting ? readFileSync(file, 'utf8') : ''
    await expectRefused(`echo 1 > ${file}`)
    if (isSetting) expect(readFileSync(file, 'utf8')).toBe(before)
  })

  test.each(['/proc/kcore', '/proc/kmsg', '/proc/1/mem', '/proc/vmallocinfo'])('does not show %s', (file) =>
    expectRefused(`timeout 2 head -c 1 ${file}`),
  )

  test('refuses keyrings, bpf, perf events, userfaultfd and io_uring', async () => {
    expect(await errorOf(`${numbers.keyctl}, 0, -3, 0`)).toBe('1')
    expect(await errorOf(`${numbers.add_key}, my $t = "user", my $d = "x", my $v = "x", 1, -3`)).toBe('1')
    expect(await errorOf(`${numbers.bpf}, 0, my $a = "\\0" x 64, 64`)).toBe('1')
    expect(await errorOf(`${numbers.perf}, my $a = "\\0" x 128, 0, -1, -1, 0`)).toBe('1')
    expect(await errorOf(`${numbers.uffd}, 0`)).toBe('38')
    expect(await errorOf(`${numbers.uring}, 1, my $a = "\\0" x 128`)).toBe('38')
  })

  test.runIf(process.arch === 'x64')('refuses system calls of other ABIs', async () => {
    expect(await errorOf('0x40000000 + 39')).toBe('38')
  })

  test('refuses vsock and packet sockets', async () => {
    const open = (family: number, type: number) =>
      bench.run(box, ['perl', '-e', `print socket(S, ${family}, ${type}, 0) ? "allowed" : $! + 0`])
    expect((await open(40, 1)).out).toBe('97')
    expect((await open(38, 5)).out).toBe('97')
    expect((await open(17, 3)).out).toBe('97')
    expect((await open(2, 3)).out).not.toBe('allowed')
    expect((await open(2, 1)).out).toBe('allowed')
  })

  test('does not honour setuid bits', async () => {
    const script =
      'cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id && setpriv --reuid 33 --regid 33 --clear-groups /tmp/id -u'
    if (isFull) expect((await sh(script)).out).toBe('33\n')
    expect((await sh('grep -E "NoNewPrivs|Seccomp:" /proc/self/status')).out).toBe('NoNewPrivs:\t1\nSeccomp:\t2\n')
    expect((await sh('grep -E "NoNewPrivs|Seccomp:" /proc/1/status')).out).toBe('NoNewPrivs:\t1\nSeccomp:\t2\n')
  })

  test('gives the first process and commands the same few capabilities', async () => {
    const { out } = await sh('grep -hE "Cap(Prm|Bnd|Eff)" /proc/1/status /proc/self/status | cut -f2 | sort -u')
    expect(out).toBe('00000000800405fb\n')
  })
})

describe('the network', () => {
  const servers: Server[] = []
  let port: number

  beforeAll(async () => {
    const server = createServer((socket) => socket.end('reached'))
    servers.push(server)
    await new Promise<void>((resolve) => server.listen(0, '0.0.0.0', resolve))
    port = (server.address() as { port: number }).port
  })
  afterAll(() => {
    for (const server of servers) server.close()
  })

  const connector = `use Socket; my ($host, $port, $seconds) = @ARGV; alarm $seconds; socket(S, 2, 1, 6);
    connect(S, sockaddr_in($port, inet_aton($host))) or die "$!\\n"; sysread S, my $t, 100; print $t`

  /** Dropped packets only end in a timeout, so it is short. */
  async function reach(from: BoxSpec, host: string, to = port, seconds = 1): Promise<string> {
    return (await bench.run(from, ['perl', '-e', connector, host, String(to), String(seconds)])).out
  }

  const patient = 30

  test('does not reach listeners of the host on any of its addresses', async () => {
    const own = Object.values(networkInterfaces()).flatMap((list) => list ?? [])
    const addresses = own.filter(({ family }) => family === 'IPv4').map(({ address }) => address)
    const { hostAddress } = boxNetwork(bench.home, box.slot)
    const all = [...new Set(['127.0.0.1', hostAddress, ...addresses])]
    expect(await Promise.all(all.map((address) => reach(box, address)))).toEqual(all.map(() => ''))
  })

  test('does not reach another box, which the host can reach', async () => {
    const serve = `use Socket; socket(S, 2, 1, 6); setsockopt(S, 1, 2, 1); bind(S, sockaddr_in(8080, INADDR_ANY)); listen(S, 5); while (accept(C, S)) { syswrite C, "reached"; close C }`
    const server = bench.run(other, ['perl', '-e', serve])
    await until(async () => (await bench.sh(other, 'grep -q ":1F90 00000000:0000 0A" /proc/net/tcp')).code === 0)
    expect(await reach(other, '127.0.0.1', 8080, patient)).toBe('reached')
    expect(await reach(box, boxNetwork(bench.home, other.slot).address, 8080)).toBe('')
    await bench.sh(other, 'pkill perl')
    await server
  })

  test('does not reach abstract sockets of the host', async () => {
    const server = createServer((socket) => socket.end('reached'))
    servers.push(server)
    const name = `\0berth-${process.pid}`
    await new Promise<void>((resolve) => server.listen(name, resolve))
    const attempt = `use Socket; socket(S, 1, 1, 0); print connect(S, pack("S a*", 1, "\\0berth-${process.pid}")) ? "reached" : $! + 0`
    expect((await bench.run(box, ['perl', '-e', attempt])).out).toBe('111')
  })

  test.runIf(isFull)('reaches public addresses, and no private ones or those of the host', async () => {
    const outside = await startOutside()
    try {
      expect(await reach(box, outside.publicAddress, outside.port, patient)).toBe('reached')
      const closed = [outside.hostAddress, outside.privateAddress, '169.254.169.254', '192.168.0.1', '172.16.0.1']
      expect(await Promise.all(closed.map((address) => reach(box, address, outside.port)))).toEqual(
        closed.map(() => ''),
      )
      await bench.boxes.stopBox(box.id)
      await bench.boxes.ensureBox(box)
      expect(await reach(box, outside.publicAddress, outside.port, patient)).toBe('reached')
    } finally {
      outside.stop()
    }
  })
})

/** A network namespace beside the host with a public and a private address; the host listens there too. */
async function startOutside() {
  const serve =
    'use Socket; socket(S, 2, 1, 6); bind(S, sockaddr_in(8099, INADDR_ANY)); listen(S, 5); $| = 1; print "up"; while (accept(C, S)) { syswrite C, "reached"; close C }'
  const { machine } = await startNeighbor(
    ['203.0.113.1/25', '10.213.0.1/24'],
    ['203.0.113.2/25', '10.213.0.2/24'],
    ['perl', '-e', serve],
  )
  return {
    port: 8099,
    publicAddress: '203.0.113.2',
    privateAddress: '10.213.0.2',
    hostAddress: '203.0.113.1',
    stop: () => machine.kill('SIGKILL'),
  }
}

describe.runIf(cgroupDriver().cgroupsAvailable())('limits', () => {
  test('stop a fork bomb and leave the box usable', async () => {
    const small = await bench.newBox({ pids: 40 })
    const bomb = await bench.run(small, [
      'perl',
      '-e',
      'for (1 .. 200) { my $p = fork; if (!defined $p) { print "stopped after $_"; last } if (!$p) { sleep 1000 } } kill "KILL", -getpgrp',
    ])
    expect(bomb.code).toBe(137)
    await until(async () => (await bench.run(small, ['true'])).code === 0)
    const { out } = await bench.run(small, [
      'perl',
      '-e',
      '$| = 1; for (1 .. 200) { my $p = fork; if (!defined $p) { print "stopped"; last } if (!$p) { sleep 2; exit } }',
    ])
    expect(out).toBe('stopped')
  })

  test('kill the program that uses too much memory, and no other', async () => {
    const small = await bench.newBox({ memoryMb: 64 })
    const first = await bench.pidOf(small)
    expect((await bench.run(small, ['perl', '-e', 'my $x = "x" x (200 << 20); print length $x'])).code).toBe(137)
    expect(await bench.pidOf(small)).toBe(first)
    expect((await bench.run(small, ['echo', 'here'])).out).toBe('here\n')
  })
})
