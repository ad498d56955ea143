// Sandboxes made from an image that contains only busybox, so that programs of the host cannot run in it by accident.
import { chmodSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { checkpointDriver } from '../../../src/drivers/box/checkpoint/checkpoint.ts'
import { boxPaths } from '../../../src/drivers/box/paths.ts'
import type { BoxServices } from '../../../src/drivers/box/service/driver.ts'
import { boxServices } from '../../../src/drivers/box/service/service.ts'
import { cgroupDriver } from '../../../src/drivers/host/cgroup.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { jobDriver } from '../../../src/drivers/s6/job.ts'
import type { BoxImage, BoxSpec } from '../../../src/model/sandbox/box.ts'
import type { Service } from '../../../src/model/sandbox/service.ts'
import { type BoxBench, openBoxBench } from '../../support/box.ts'
import { busyboxImage, descriptorOf, type ImageSpec, makeImage, makeTar } from '../../support/image.ts'
import { canRunAs, firstLine, processesBelow, startProgram, temporaryDirectory } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

let bench: BoxBench
let services: BoxServices
let spec: BoxSpec

/** Writes the image as an OCI archive. */
function writeArchive(file: string, image: ImageSpec): void {
  const { manifest, config, layers } = makeImage(image)
  const index = { schemaVersion: 2, manifests: [descriptorOf(manifest)] }
  const entries = [
    { name: 'oci-layout', content: JSON.stringify({ imageLayoutVersion: '1.0.0' }) },
    { name: 'index.json', content: JSON.stringify(index) },
    ...[manifest, config, ...layers].map(({ digest, content }) => ({
      name: `blobs/sha256/${digest.slice('sha256:'.length)}`,
      content,
    })),
  ]
  writeFileSync(file, makeTar(entries))
  chmodSync(file, 0o644)
}

async function pull(name: string, image: ImageSpec): Promise<BoxImage> {
  const file = `${bench.directory}/${name}.tar`
  writeArchive(file, image)
  const { digest, config } = await bench.images.pullImage({ kind: 'tar', file })
  return { digest, env: config.env, workingDir: config.workingDir }
}

const stored = { wanted: true, revision: 1, stopMs: null, problem: null }

function service(name: string, argv: [string, ...string[]], rest: Partial<Service> = {}): Service {
  const [cmd, ...args] = argv
  return { name, cmd, args, needs: [], httpPort: null, env: {}, dir: null, health: null, ...stored, ...rest }
}

const ensure = (one: Service) => services.ensureService(spec, { name: one.name, service: one, environment: {} })
const remove = (name: string) => services.ensureService(spec, { name, service: undefined, environment: {} })

async function start(one: Service): Promise<void> {
  services.setOrder(spec, [one])
  await ensure(one)
}

const isUp = (one: Service) => {
  const found = services.inspectService(spec.id, one)
  return found.is === 'up' && found.ready ? found : undefined
}

function logOf(name: string, stream: 'stdout' | 'stderr'): string {
  const directory = `${boxPaths(bench.home, spec.id).log}/${name}/${stream}`
  return readdirSync(directory).includes('current') ? readFileSync(`${directory}/current`, 'utf8') : ''
}

beforeAll(async () => {
  bench = await openBoxBench()
  services = boxServices({ home: bench.home, boxes: bench.boxes })
  const image = await pull(
    'busybox',
    busyboxImage({ Env: ['COLOUR=blue', 'PATH=/bin', 'HOME=/root'], WorkingDir: '/srv/work' }),
  )
  spec = { ...bench.newSpec(), image }
  await bench.boxes.ensureBox(spec)
})
afterAll(() => bench?.remove())

describe('commands', () => {
  test('run in the image, with its environment and working directory', async () => {
    const { out, err } = await bench.sh(
      spec,
      'pwd; echo $COLOUR $PATH $HOME; ls /; cat /etc/passwd; hostname; cat /etc/hostname',
    )
    expect(err).toBe('')
    expect(out).toContain('/srv/work\nblue /bin:/.sprite/bin /home/sprite\n')
    expect(out).toContain('www\n')
    expect(out).toContain('web:x:1000:1000')
    expect(out.match(new RegExp(spec.hostname, 'g'))).toHaveLength(2)
    expect((await bench.run(spec, ['env'], { env: { COLOUR: 'red' }, dir: '/tmp' })).out).toContain('COLOUR=red\n')
  })

  test('see nothing of the host except the read-only tools that supervise services', async () => {
    expect((await bench.sh(spec, 'ls /usr /lib /lib64 /sbin 2>/dev/null; cat /etc/debian_version')).out).toBe('/usr:\n')
    expect((await bench.run(spec, ['perl', '-v'])).code).toBe(127)
    const change = await bench.sh(spec, 'touch /.berth/x; rm /.berth/bin/sh; echo > /.berth/lib/libc.so.6; ls /.berth')
    expect(change.err.match(/Read-only/g)).toHaveLength(3)
    expect((await bench.sh(spec, 'cat /proc/mounts; cat /proc/[0-9]*/environ')).out).not.toContain(bench.directory)
  })

  test('keep their files over a restart and do not change the image', async () => {
    await bench.sh(spec, 'echo kept > /www/kept; rm /etc/passwd; mkdir -p /opt/new')
    await bench.boxes.stopBox(spec.id)
    await bench.boxes.ensureBox(spec)
    expect((await bench.sh(spec, 'cat /www/kept; ls -d /opt/new; cat /etc/passwd')).out).toBe('kept\n/opt/new\n')
    const other = { ...bench.newSpec(), image: spec.image! }
    await bench.boxes.ensureBox(other)
    expect((await bench.sh(other, 'ls /www; cat /etc/passwd')).out).toContain('root:x:0')
    await bench.boxes.removeBox(other)
  })
})

describe('services', () => {
  const loop = 'echo "$COLOUR $HOME $PATH $LD_LIBRARY_PATH"; pwd; echo oops >&2; while :; do sleep 0.1; done'

  test('run, are logged, signalled, stopped and started again', async () => {
    const one = service('one', ['sh', '-c', `trap 'echo heard; ' USR2; ${loop}`], { env: { COLOUR: 'green' } })
    await start(one)
    await until(() => isUp(one) !== undefined && logOf('one', 'stderr').includes('oops'))
    await until(() => logOf('one', 'stdout').includes('green /home/sprite /bin:/.sprite/bin \n'))
    expect(logOf('one', 'stdout')).toContain('/srv/work\n')
    const { pid } = isUp(one)!
    expect((await bench.sh(spec, `cat /proc/${pid}/environ`)).out).not.toContain('.berth')
    expect(await services.signalService(spec, 'one', 12)).toBe(true)
    await until(() => logOf('one', 'stdout').includes('heard'))
    // A signal that s6 cannot send itself.
    expect(await services.signalService(spec, 'one', 34)).toBe(true)
    await bench.sh(spec, `kill -9 ${pid}`)
    await until(() => isUp(one) !== undefined && isUp(one)!.pid !== pid)
    await ensure({ ...one, wanted: false })
    expect(services.inspectService(spec.id, one)).toMatchObject({ is: 'down', wanted: false })
    await remove('one')
  })

  test('wait for their dependencies, whose health is checked with tools of the host', async () => {
    const web = service('web', ['httpd', '-f', '-p', '127.0.0.1:8080', '-h', '/www'], {
      httpPort: 8080,
      health: { check: { http: { path: '/index.html', port: 8080 } }, intervalMs: 200, timeoutMs: 2000, threshold: 1 },
    })
    const asked = service('asked', ['sh', '-c', 'while :; do sleep 1; done'], {
      needs: ['web'],
      health: {
        check: { command: ['sh', '-c', 'test "$COLOUR" = blue && test -e /www/index.html'] },
        intervalMs: 200,
        timeoutMs: 2000,
        threshold: 1,
      },
    })
    await start(web)
    await start(asked)
    await until(() => services.inspectService(spec.id, asked).is === 'up')
    expect(services.inspectService(spec.id, web)).toMatchObject({ is: 'up', ready: false })
    expect(services.inspectService(spec.id, asked)).toMatchObject({ is: 'up', ready: false })
    await bench.sh(spec, 'echo hello from the image > /www/index.html')
    await until(() => isUp(asked) !== undefined)
    expect(isUp(web)).toMatchObject({ health: { status: 'healthy' } })
    if (isRoot()) expect(await get(bench.boxes.addressOf(spec), 8080)).toContain('hello from the image')
    services.setOrder(spec, [web, asked])
    await bench.boxes.stopBox(spec.id)
    await bench.boxes.ensureBox(spec)
    await until(() => isUp(asked) !== undefined && isUp(web) !== undefined)
    for (const name of ['asked', 'web']) await remove(name)
  })

  test('report why they cannot run', async () => {
    const none = service('none', ['no-such-program'])
    await start(none)
    await until(() => {
      const found = services.inspectService(spec.id, none)
      return found.is !== 'absent' && found.is !== 'up' && found.end?.code === 127
    })
    await remove('none')
  })
})

function get(host: string, port: number): Promise<string> {
  return new Promise((resolve, reject) => {
    let text = ''
    const socket = connect({ host, port }, () => socket.write('GET / HTTP/1.0\r\n\r\n'))
    socket.on('data', (data) => {
      text += data
    })
    socket.on('error', reject).on('close', () => resolve(text))
  })
}

test('a checkpoint restores the files that were written over the image', async () => {
  const driver = checkpointDriver({ home: bench.home, jobs: jobDriver(bench.supervisor), cgroups: cgroupDriver() })
  const ended = async (look: () => Promise<{ is: string }>) => {
    for (;;) {
      const state = await look()
      if (state.is !== 'running') return state
    }
  }
  await bench.sh(spec, 'echo before > /data/file; rm -rf /var')
  expect(await ended(() => driver.makeCheckpoint(spec, 'v1'))).toEqual({ is: 'done' })
  await bench.sh(spec, 'echo after > /data/file; mkdir /var; rm /bin/cat')
  await seesCheckpoint('v1')
  expect(await ended(() => driver.prepareRestore(spec, 'v1', 'auto-1'))).toEqual({ is: 'done' })
  await bench.boxes.stopBox(spec.id)
  await driver.swapLayers(spec, 'auto-1')
  await bench.boxes.ensureBox(spec)
  await driver.tidy(spec)
  expect((await bench.sh(spec, 'cat /data/file; ls -d /var')).out).toBe('before\n')
  await seesCheckpoint('v1')
  expect((await bench.sh(spec, 'cat /.sprite/checkpoints/auto-1/data/file; ls /.sprite/checkpoints')).out).toBe(
    'after\nauto-1\nv1\n',
  )
})

/** The view has the files of the image without those that were removed, and is read-only. */
async function seesCheckpoint(name: string): Promise<void> {
  const look = `cd /.sprite/checkpoints/${name} && busybox cat data/file && ls -d bin/cat var
    echo x > data/file; rmdir /.sprite/checkpoints/${name}; mkdir /.sprite/checkpoints/mine`
  const { out, err } = await bench.sh(spec, look)
  expect(out).toBe('before\nbin/cat\n')
  expect(err).toMatch(/var: No such file/)
  expect(err.match(/Read-only|Permission denied|busy/g)).toHaveLength(3)
}

describe('an image', () => {
  const busybox = () => busyboxImage().layers[0]!.files

  test('may have links at the mount points of a sandbox, and no home directory', async () => {
    const links = ['proc', 'dev', '.berth', '.sprite', 'run', 'tmp'].map((name) => ({
      name,
      type: 'symlink' as const,
      link: `/oldroot/${name}`,
    }))
    const names = new Set(links.map(({ name }) => name))
    const files = [
      ...busybox().filter(({ name }) => !names.has(name.replace(/\/$/, '')) && name !== 'home/'),
      ...links,
      { name: 'etc/resolv.conf', type: 'symlink' as const, link: '/oldroot/etc/hostname' },
    ]
    const odd = { ...bench.newSpec(), image: await pull('odd', { layers: [{ files }] }) }
    await bench.boxes.ensureBox(odd)
    expect((await bench.sh(odd, 'pwd; ls /proc/self/cmdline /.sprite/version.txt; ls -l /run')).out).toMatch(
      /^\/home\/sprite\n\/\.sprite\/version\.txt\n\/proc\/self\/cmdline\n.*oldroot/,
    )
    await bench.boxes.removeBox(odd)
  })

  test('starts without any program, and a service in it can be an uploaded file', async () => {
    const empty = {
      ...bench.newSpec(),
      image: await pull('empty', { layers: [{ files: [{ name: 'etc/', type: 'directory' }] }] }),
    }
    await bench.boxes.ensureBox(empty)
    expect(await bench.run(empty, ['sh'])).toMatchObject({ code: 127 })
    expect((await bench.run(empty, ['/.berth/bin/sh', '-c', 'echo ours; cd /home/sprite'])).out).toBe('ours\n')
    await bench.boxes.removeBox(empty)
  })

  test('that has not been pulled keeps its sandbox from starting', async () => {
    const away = { ...bench.newSpec(), image: { digest: `sha256:${'0'.repeat(64)}`, env: {}, workingDir: '' } }
    await expect(bench.boxes.ensureBox(away)).rejects.toThrow('has not been pulled')
    await expect(bench.boxes.ensureBox({ ...away, image: { ...away.image, digest: null } })).rejects.toThrow('pulled')
  })
})

test('works in a sandbox with minimal privileges', async () => {
  const minimal = { ...bench.newSpec(), image: spec.image!, isMinimal: true }
  await bench.boxes.ensureBox(minimal)
  expect((await bench.sh(minimal, 'pwd; echo x > /data/file && cat /data/file')).out).toBe('/srv/work\nx\n')
  await bench.boxes.removeBox(minimal)
})

const ordinary = 65_534

describe.runIf(isRoot() && canRunAs(ordinary))('without root', () => {
  const directory = temporaryDirectory(ordinary)
  afterAll(() => rmSync(directory, { recursive: true, force: true }))

  /** Runs as another user: uses a sandbox, a service in it, and the sandbox again after a restart. Prints what it saw. */
  const program = (file: string) => `
    import { boxDriver } from 'drivers/box/lifecycle.ts'
    import { boxServices } from 'drivers/box/service/service.ts'
    import { cgroupDriver } from 'drivers/host/cgroup.ts'
    import { openHome } from 'drivers/host/home.ts'
    import { imageStore } from 'drivers/image/store.ts'
    import { waitUntil } from 'drivers/../model/poll.ts'
    import { s6Supervisor } from 'drivers/s6/supervisor.ts'
    const home = await openHome('${directory}/h', { uidBase: 300000 })
    const supervisor = s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
    await supervisor.ensureTree()
    const images = imageStore({ home })
    const boxes = boxDriver({ home, supervisor, cgroups: cgroupDriver(), images })
    const services = boxServices({ home, boxes })
    const { digest, config } = await images.pullImage({ kind: 'tar', file: '${file}' })
    const image = { digest, env: config.env, workingDir: config.workingDir }
    const limits = { memoryMb: 256, cpus: 1, pids: 100 }
    const spec = { id: 'ordinary', slot: 1, hostname: 'ordinary', limits, image }
    const sh = (script) => new Promise((resolve) => {
      const child = boxes.spawnInBox(spec, { argv: ['sh', '-c', script] })
      let out = ''
      child.stdout.on('data', (data) => { out += data })
      child.stdin.end()
      child.on('close', () => resolve(out))
    })
    const seen = {}
    try {
      await boxes.ensureBox(spec)
      seen.first = await sh('pwd; id -u; echo kept > /etc/kept; rm /etc/group')
      const one = ${JSON.stringify(service('one', ['sleep', '100']))}
      await services.ensureService(spec, { name: 'one', service: one, environment: {} })
      seen.isUp = await waitUntil(() => services.inspectService(spec.id, one).ready === true, 30)
      await boxes.stopBox(spec.id)
      await boxes.ensureBox(spec)
      seen.again = await sh('cat /etc/kept /etc/group')
    } finally {
      await boxes.removeBox(spec)
      await supervisor.stopTree()
    }
    console.log(JSON.stringify(seen))
  `

  test('a sandbox can be made from an image', async () => {
    const file = `${directory}/image.tar`
    writeArchive(file, busyboxImage({ WorkingDir: '/data' }))
    const seen = JSON.parse(await firstLine(startProgram(program(file), ordinary)))
    expect(seen).toEqual({ first: '/data\n0\n', isUp: true, again: 'kept\n' })
    await until(() => processesBelow(directory).length === 0)
  })
})
