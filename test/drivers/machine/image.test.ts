import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { findProcess, listProcesses } from '../../../src/drivers/host/process-list.ts'
import { machinePaths } from '../../../src/drivers/machine/paths.ts'
import type { MachineSpec } from '../../../src/model/app/machine-spec.ts'
import { newId } from '../../../src/model/ids.ts'
import { type MachineBench, openMachineBench, waiting } from '../../support/machine-bench.ts'
import { until } from '../../support/until.ts'

const isFull = isRoot()
let bench: MachineBench
let plain: MachineSpec

beforeAll(async () => {
  bench = await openMachineBench()
  writeFileSync(bench.home.tokenFile, 'secret of the host', { mode: 0o600 })
  plain = await bench.newMachine()
})
afterAll(() => bench?.remove())

/** Runs a machine with this script and returns its output. */
async function outputOf(script: string, parts: Partial<MachineSpec> = {}): Promise<string> {
  const spec = await bench.newMachine({ ...parts, script: `${script}\necho the end` })
  await bench.untilPrinted(spec, 'exited with code')
  await bench.untilPrinted(spec, 'the end')
  const lines = await bench.machines.readLog(spec.id, 1000)
  await bench.machines.removeMachine(spec.id, spec.slot)
  const own = lines.filter(({ stream, text }) => stream === 'stdout' && text !== 'the end')
  return own.map(({ text }) => text).join('\n')
}

describe('the root filesystem', () => {
  test('is the image with upper layers over lower ones, and fresh for each start', async () => {
    const layers = [
      ...plain.layers,
      bench.newLayer({ 'etc/passwd': 'root:x:0:0::/:/bin/sh\n', 'opt/data': 'from above\n' }),
    ]
    const script = `cat /etc/passwd /opt/data /left 2>/dev/null; echo x > /left; rm /opt/data; ${waiting}`
    const spec = await bench.newMachine({ layers, script })
    await bench.untilPrinted(spec, 'ready')
    expect(await bench.printed(spec)).toBe('root:x:0:0::/:/bin/sh\nfrom above\nready\n')
    await bench.machines.stopMachine(spec.id, spec.stop)
    const { directory } = machinePaths(bench.home, spec.id)
    expect(existsSync(`${directory}/layer`)).toBe(false)
    await bench.machines.startMachine(spec)
    await until(async () => (await bench.printed(spec)).match(/^from above$/gm)?.length === 2)
    expect(await bench.printed(spec)).not.toContain('x\n\n')
    expect(readFileSync(`${layers.at(-1)}/opt/data`, 'utf8')).toBe('from above\n')
  })

  test('keeps changes over a stop if it is persistent', async () => {
    const spec = await bench.newMachine({ keepsRoot: true, script: `cat /left; echo kept > /left; ${waiting}` })
    await bench.untilPrinted(spec, 'ready')
    await bench.machines.stopMachine(spec.id, spec.stop)
    await bench.machines.startMachine({ ...spec, instanceId: 'second' })
    await bench.untilPrinted(spec, 'kept')
  })

  test('shows nothing of the host', async () => {
    const { out } = await bench.sh(plain, 'ls /; ls /dev; ls -A /sys /run 2>/dev/null; hostname; cat /proc/mounts')
    expect(out).not.toMatch(/usr|sprite|berth/)
    expect(out).not.toContain(bench.directory)
    const environments = 'cat /proc/[0-9]*/environ | tr "\\0" "\\n"; cat /proc/[0-9]*/cmdline | tr "\\0" " "'
    expect((await bench.sh(plain, environments)).out).not.toContain(bench.directory)
    expect((await bench.sh(plain, `cat ${bench.home.tokenFile} /proc/1/root${bench.home.tokenFile}`)).out).toBe('')
  })

  test('has the files of the platform, even where the image has links that lead outside', async () => {
    const outside = `${bench.directory}/outside`
    mkdirSync(outside, { recursive: true, mode: 0o777 })
    execFileSync('chmod', ['777', outside])
    const layers = [
      ...plain.layers,
      bench.newLayer({
        'etc/resolv.conf': `-> ${outside}/resolv.conf`,
        'etc/hosts': '-> /oldroot/etc/hosts',
        'etc/hostname': '-> ../../../../../../../etc/hostname',
        dev: '-> /oldroot/dev',
        proc: `-> ${outside}`,
        sys: '-> /etc',
      }),
    ]
    const script =
      'cat /etc/hosts /etc/hostname; [ -f /etc/resolv.conf ] && [ ! -L /etc/resolv.conf ] && echo own; ls -d /proc/1 /dev/null'
    const out = await outputOf(script, { layers, hostname: 'odd' })
    expect(out).toContain('127.0.0.1 localhost odd')
    expect(out).toContain('\nodd\nown\n')
    expect(out).toContain('/dev/null\n/proc/1')
    expect(execFileSync('ls', ['-A', outside], { encoding: 'utf8' })).toBe('')
  })

  test('follows links only within the image', async () => {
    const outside = `${bench.directory}/led-here`
    mkdirSync(outside)
    execFileSync('chmod', ['777', outside])
    const layers = [
      ...plain.layers,
      bench.newLayer({ etc: '-> /config', 'config/passwd': 'root:x:0:0::/:/bin/sh\n', way: `-> ${outside}` }),
    ]
    const files = [{ path: '/way/file', mode: 0o640, content: Buffer.from('inside') }]
    const refused = bench.newSpec({ layers, files })
    await expect(bench.machines.startMachine(refused)).rejects.toThrow('/way')
    const out = await outputOf('cat /config/hostname; ls -l /config/hosts | cut -c1', { layers, hostname: 'linked' })
    expect(out).toBe('linked\n-')
    expect(execFileSync('ls', ['-A', outside], { encoding: 'utf8' })).toBe('')
  })

  test('has the configured files, byte for byte, before the program starts', async () => {
    const content = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))
    const files = [
      { path: '/a/new/place/%00', mode: 0o600, content },
      { path: '/etc/passwd', mode: 0o644, content: Buffer.from('root:x:0:0:changed:/:/bin/sh\n') },
      { path: '/empty', mode: 0o755, content: Buffer.alloc(0) },
    ]
    const out = await outputOf(
      'cat "/a/new/place/%00" | od -An -tx1 | tr -d " \\n"; echo; cat /etc/passwd; stat -c %a /a/new/place/* /empty',
      { files },
    )
    expect(out).toBe(`${content.toString('hex')}\nroot:x:0:0:changed:/:/bin/sh\n600\n755`)
    const { program, config } = machinePaths(bench.home, plain.id)
    for (const file of [program, config])
      expect(execFileSync('stat', ['-c', '%a', file], { encoding: 'utf8' }).trim()).toBe('600')
  })

  test.each(['relative', '/../../etc/x/../y'])('never writes a file at %j outside of it', async (path) => {
    const spec = bench.newSpec({ files: [{ path, mode: 0o644, content: Buffer.from('x') }] })
    const started = await bench.machines.startMachine(spec).catch((error) => error.message)
    if (path === 'relative') expect(started).toContain('absolute')
    expect(existsSync('/etc/y')).toBe(false)
  })
})

describe('the program', () => {
  test('gets only its own environment, which no other process of the host can read', async () => {
    const env = {
      PATH: '/bin',
      SECRET: 'hush',
      LINES: 'a\nb',
      EQUALS: 'a=b',
      EMPTY: '',
      LD_PRELOAD: '/x.so',
      'odd.name': '1',
    }
    const spec = await bench.newMachine({ env, script: `env; echo "$LINES"; ${waiting}` })
    await bench.untilPrinted(spec, 'ready')
    const printed = await bench.printed(spec)
    for (const line of ['SECRET=hush', 'EQUALS=a=b', 'EMPTY=', 'HOME=/root', 'LD_PRELOAD=/x.so'])
      expect(printed).toContain(`${line}\n`)
    expect(printed).not.toContain('BERTH')
    const words = listProcesses().map(({ pid }) => {
      try {
        return readFileSync(`/proc/${pid}/cmdline`, 'utf8')
      } catch {
        return ''
      }
    })
    expect(words.filter((text) => text.includes('hush'))).toEqual([])
    expect((await bench.sh(spec, 'echo $SECRET $HOME')).out).toBe('hush /root\n')
  })

  test.runIf(isFull).each([
    ['', '0 0 /root'],
    ['guest', '405 100 /home/guest'],
    ['405', '405 100 /home/guest'],
    ['guest:wheel', '405 10 /home/guest'],
    ['1234', '1234 0 /'],
    ['1234:4321', '1234 4321 /'],
    ['65535:65535', '65535 65535 /'],
  ])('runs as %j of the image', async (user, expected) => {
    const script =
      'echo "$(id -u) $(id -g) $HOME"; touch /tmp/mine && stat -c %u /tmp/mine; grep CapEff /proc/self/status'
    const spec = await bench.newMachine({ user, script: `${script}; ${waiting}` })
    await bench.untilPrinted(spec, 'ready')
    const [identity, owner, rights] = (await bench.printed(spec)).split('\n')
    expect(identity).toBe(expected)
    expect(owner).toBe(expected.split(' ')[0])
    if (owner !== '0') expect(rights).toBe('CapEff:\t0000000000000000')
    expect((await bench.sh(spec, 'echo "$(id -u) $(id -g) $HOME"')).out.trim()).toBe(expected)
    await bench.machines.stopMachine(spec.id, { signal: 'SIGTERM', timeoutMs: 20_000 })
    expect(bench.exits(spec)).toMatchObject([{ exitCode: 0 }])
    await bench.machines.removeMachine(spec.id, spec.slot)
  })

  test.runIf(isFull)('belongs to all groups that list its user', async () => {
    expect(await outputOf('id -G', { user: 'guest' })).toMatch(/\b10\b/)
    await expect(bench.machines.startMachine(bench.newSpec({ user: '70000' }))).rejects.toThrow('0 to 65535')
    await expect(bench.machines.startMachine(bench.newSpec({ user: 'guest:nobody' }))).rejects.toThrow(
      'no group nobody',
    )
  })

  test('starts in its working directory, which is created if missing', async () => {
    expect(await outputOf('pwd', { workingDir: '/srv/app/deep' })).toBe('/srv/app/deep')
    const spec = await bench.newMachine({ workingDir: '/etc', argv: ['../bin/sh', '-c', `pwd; ${waiting}`] })
    await bench.untilPrinted(spec, 'ready')
    expect(await bench.printed(spec)).toBe('/etc\nready\n')
    expect((await bench.sh(spec, 'pwd')).out).toBe('/etc\n')
  })

  test('can open its output by name, as any user', async () => {
    const script = 'echo out > /dev/stdout; echo err > /dev/stderr; echo again >> /proc/self/fd/1'
    const spec = await bench.newMachine({ user: isFull ? 'guest' : '', script })
    await bench.untilPrinted(spec, 'again')
    await bench.untilPrinted(spec, 'err')
  })

  test('has its orphans reaped', async () => {
    const { out } = await bench.sh(plain, 'sleep 0.01 & echo $!')
    await until(async () => (await bench.sh(plain, `[ -e /proc/${out.trim()} ]`)).code === 1)
  })
})

describe('commands', () => {
  test('run with the environment and user of the machine and return the exit code', async () => {
    expect(await bench.sh(plain, 'echo out; echo err >&2; exit 7')).toEqual({ code: 7, out: 'out\n', err: 'err\n' })
    expect((await bench.run(plain, ['cat'], 'through')).out).toBe('through')
    expect((await bench.run(plain, ['no-such'])).code).toBe(127)
    const stopped = await bench.newMachine()
    await bench.machines.stopMachine(stopped.id, stopped.stop)
    expect(await bench.run(stopped, ['true'])).toMatchObject({ code: 126, err: 'the machine is not running\n' })
  })

  test('are killed when the machine stops', async () => {
    const spec = await bench.newMachine()
    const child = bench.machines.spawnInMachine(spec, { argv: ['sh', '-c', 'echo ready; sleep 999'] })
    await new Promise((resolve) => child.stdout!.once('data', resolve))
    const ended = new Promise((resolve) => child.on('close', resolve))
    await bench.machines.stopMachine(spec.id, spec.stop)
    expect(await ended).toBe(137)
  })
})

describe.runIf(isFull)('a volume', () => {
  async function newVolume(): Promise<string> {
    const id = `vol_${newId()}`
    await until(async () => (await bench.volumes.ensureVolume({ id, sizeGb: 1 })).is === 'done')
    return id
  }

  test('keeps its content over stops and machines, and enforces its size', async () => {
    const volumeId = await newVolume()
    const mounts = [{ volumeId, path: '/data' }]
    const script = `echo kept > /data/x; chown 33:44 /data/x; df -k /data | tail -n 1; ${waiting}`
    const spec = await bench.newMachine({
      mounts,
      script,
      files: [{ path: '/data/y', mode: 0o644, content: Buffer.from('y') }],
    })
    await bench.untilPrinted(spec, 'ready')
    const enforced = await bench.volumes.enforcesSize()
    if (enforced) expect(Number((await bench.printed(spec)).split(/\s+/)[1])).toBeLessThan(1024 * 1024)
    await bench.machines.removeMachine(spec.id, spec.slot)
    const other = await bench.newMachine({
      mounts: [{ volumeId, path: '/other/place' }],
      script: `cat /other/place/x /other/place/y; stat -c %u:%g /other/place/x; ${waiting}`,
    })
    await bench.untilPrinted(other, 'ready')
    expect(await bench.printed(other)).toContain('kept\ny33:44\n')
    await bench.machines.stopMachine(other.id, other.stop)
    await bench.machines.startMachine(other)
    expect(bench.look(other).is).toBe('up')
    await bench.machines.removeMachine(other.id, other.slot)
    await until(() => !loops().includes(volumeId))
  })

  test('is mounted inside the image even if the path has links', async () => {
    const volumeId = await newVolume()
    const layers = [...plain.layers, bench.newLayer({ data: `-> ${bench.directory}` })]
    const refused = bench.newSpec({ layers, mounts: [{ volumeId, path: '/data' }] })
    await expect(bench.machines.startMachine(refused)).rejects.toThrow('/data')
    const spec = bench.newSpec({ mounts: [{ volumeId, path: '/proc/x' }] })
    await expect(bench.machines.startMachine(spec)).rejects.toThrow('cannot be mounted')
    await until(() => !loops().includes(volumeId))
  })

  function loops(): string {
    return execFileSync('losetup', ['--list', '--noheadings', '--output', 'BACK-FILE'], { encoding: 'utf8' })
  }
})

describe('privileges', () => {
  const refused = async (script: string) => {
    const ended = await bench.sh(plain, script)
    expect({ script, code: ended.code }).not.toEqual({ script, code: 0 })
  }

  test('do not include access to the kernel', async () => {
    for (const script of [
      'mount -t tmpfs none /tmp',
      'unshare -U true',
      'mknod /tmp/disk b 254 0',
      'echo 1 > /proc/sys/kernel/panic',
      'chroot /proc/1/root cat /etc/shadow',
      'nsenter -t 1 -m true',
      'ip link add x type dummy',
      'dmesg',
      'kill -9 1; sleep 0.05; [ ! -d /proc/1 ]',
    ])
      await refused(script)
    const pid = (bench.look(plain) as { pid: number }).pid
    const first = findProcess(pid)!.parent
    for (const one of [pid, first]) {
      const status = readFileSync(`/proc/${one}/status`, 'utf8')
      expect(status).toMatch(/^Seccomp:\t2$/m)
      expect(status).toMatch(/^NoNewPrivs:\t1$/m)
    }
  })

  test.runIf(isFull)('on the host are those of an unprivileged user', async () => {
    const pid = (bench.look(plain) as { pid: number }).pid
    const uid = Number(/^Uid:\t(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1])
    expect(uid).toBe(bench.home.uidStart + plain.slot * 65_536)
  })
})
