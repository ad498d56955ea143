import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { chmodSync, copyFileSync, existsSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { removeNetwork } from '../../src/drivers/box/network.ts'
import type { BoxAbility } from '../../src/drivers/box/probe.ts'
import { cgroupDriver, removeCgroups } from '../../src/drivers/host/cgroup.ts'
import { killFrozenProcesses, removeFreezers } from '../../src/drivers/host/cgroup-freezer.ts'
import { type Home, openHome } from '../../src/drivers/host/home.ts'
import type { MachineDriver, MachineExit, MachineProcess } from '../../src/drivers/machine/driver.ts'
import { machineDriver } from '../../src/drivers/machine/lifecycle.ts'
import type { Supervisor } from '../../src/drivers/s6/driver.ts'
import { jobDriver } from '../../src/drivers/s6/job.ts'
import { s6Supervisor } from '../../src/drivers/s6/supervisor.ts'
import type { VolumeDriver } from '../../src/drivers/volume/driver.ts'
import { volumeDriver } from '../../src/drivers/volume/lifecycle.ts'
import type { MachineSpec } from '../../src/model/app/machine-spec.ts'
import { type ExitResult, waitForExit } from './child.ts'
import { removeTemporaryHome, temporaryDirectory } from './temporary-home.ts'
import { until } from './until.ts'

export interface MachineBench {
  directory: string
  home: Home
  supervisor: Supervisor
  machines: MachineDriver
  volumes: VolumeDriver
  /** Describes a machine whose shell waits, unless a script is given. */
  newSpec(parts?: Partial<MachineSpec> & { script?: string }): MachineSpec
  /** Describes and starts a machine. */
  newMachine(parts?: Partial<MachineSpec> & { script?: string }): Promise<MachineSpec>
  /** Makes the top layer of an image from these files. The content `-> target` makes a link. */
  newLayer(files: Record<string, string>): string
  look(spec: MachineSpec): MachineProcess
  exits(spec: MachineSpec): MachineExit[]
  /** Waits for the program and returns its pid on the host. */
  pidOf(spec: MachineSpec): Promise<number>
  run(spec: MachineSpec, argv: [string, ...string[]], input?: string): Promise<ExitResult>
  sh(spec: MachineSpec, script: string): Promise<ExitResult>
  /** Returns its output so far. */
  printed(spec: MachineSpec): Promise<string>
  /** Waits until its output contains this text. */
  untilPrinted(spec: MachineSpec, text: string): Promise<void>
  remove(): Promise<void>
}

export const waiting = 'trap "exit 0" TERM INT; echo ready; while :; do sleep 0.02; done'

/** Opens a temporary home that runs real machines. */
export async function openMachineBench(ability?: BoxAbility, directory = temporaryDirectory()): Promise<MachineBench> {
  const home = await openHome(`${directory}/h`, { uidBase: 300_000 })
  const supervisor = s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
  await supervisor.ensureTree()
  const volumes = volumeDriver({ home, jobs: jobDriver(supervisor) })
  const machines = machineDriver({
    home,
    supervisor,
    cgroups: cgroupDriver(),
    volumes,
    ...(ability && { ability }),
  })
  const specs: MachineSpec[] = []
  let layers = 0
  const busybox = newLayer({
    'etc/passwd': 'root:x:0:0:root:/root:/bin/sh\nguest:x:405:100:guest:/home/guest:/bin/sh\n',
    'etc/group': 'root:x:0:root\nusers:x:100:\nwheel:x:10:root,guest\n',
  })
  fillWithBusybox(busybox)

  function newLayer(files: Record<string, string>): string {
    const layer = `${directory}/layer-${layers++}`
    mkdirSync(layer)
    chmodSync(layer, 0o755)
    for (const [path, text] of Object.entries(files)) {
      mkdirSync(`${layer}/${path}`.replace(/\/[^/]*$/, ''), { recursive: true })
      if (text.startsWith('-> ')) symlinkSync(text.slice(3), `${layer}/${path}`)
      else writeFileSync(`${layer}/${path}`, text, { mode: text.startsWith('#!') ? 0o755 : 0o644 })
    }
    return layer
  }

  function newSpec({ script = waiting, ...parts }: Partial<MachineSpec> & { script?: string } = {}): MachineSpec {
    const spec: MachineSpec = {
      id: randomBytes(7).toString('hex'),
      instanceId: 'first',
      slot: 1023 - specs.length,
      hostname: `machine-${specs.length}`,
      layers: [busybox],
      argv: ['sh', '-c', script],
      env: { PATH: '/usr/bin:/bin' },
      user: '',
      workingDir: '',
      files: [],
      limits: { memoryMb: 256, cpus: 2, pids: 200 },
      mounts: [],
      containers: [],
      restart: { policy: 'no', maxRetries: 0 },
      stop: { signal: 'SIGTERM', timeoutMs: 5000 },
      keepsRoot: false,
      ...parts,
    }
    specs.push(spec)
    return spec
  }

  function run(spec: MachineSpec, argv: [string, ...string[]], input = ''): Promise<ExitResult> {
    return waitForExit(machines.spawnInMachine(spec, { argv }), input)
  }

  async function printed(spec: MachineSpec): Promise<string> {
    return (await machines.readLog(spec.id, 1000)).map(({ text }) => `${text}\n`).join('')
  }

  const look = (spec: MachineSpec) => machines.inspectMachine(spec.id, spec.instanceId)

  return {
    directory,
    home,
    supervisor,
    machines,
    volumes,
    newSpec,
    async newMachine(parts) {
      const spec = newSpec(parts)
      await machines.startMachine(spec)
      return spec
    },
    newLayer,
    look,
    async pidOf(spec) {
      let pid = 0
      await until(() => {
        const found = look(spec)
        if (found.is === 'up') pid = found.pid
        return found.is === 'up'
      })
      return pid
    },
    exits(spec) {
      const found = look(spec)
      return found.is === 'absent' ? [] : found.exits
    },
    run,
    sh: (spec, script) => run(spec, ['sh', '-c', script]),
    printed,
    untilPrinted: (spec, text) => until(async () => (await printed(spec)).includes(text)),
    async remove() {
      for (const { id, slot } of specs) await machines.removeMachine(id, slot).catch(() => undefined)
      await killFrozenProcesses(home)
      await supervisor.stopTree({ timeoutSeconds: 10 })
      await removeCgroups(home)
      await removeFreezers(home)
      await removeNetwork(home)
      await removeTemporaryHome(directory)
    },
  }
}

function fillWithBusybox(layer: string): void {
  const program = ['/usr/bin/busybox', '/bin/busybox'].find(existsSync)!
  mkdirSync(`${layer}/bin`)
  copyFileSync(program, `${layer}/bin/busybox`)
  for (const name of execFileSync(program, ['--list'], { encoding: 'utf8' }).trim().split('\n'))
    if (name !== 'busybox') symlinkSync('busybox', `${layer}/bin/${name}`)
  for (const name of ['root', 'home/guest', 'tmp']) mkdirSync(`${layer}/${name}`, { recursive: true })
  chmodSync(`${layer}/tmp`, 0o1777)
}
