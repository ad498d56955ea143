import { readdirSync } from 'node:fs'
import type { BoxCommand, BoxDriver } from '../../src/drivers/box/driver.ts'
import { boxDriver } from '../../src/drivers/box/lifecycle.ts'
import { removeNetwork } from '../../src/drivers/box/network.ts'
import type { BoxAbility } from '../../src/drivers/box/probe.ts'
import { cgroupDriver, removeCgroups } from '../../src/drivers/host/cgroup.ts'
import { type Home, openHome } from '../../src/drivers/host/home.ts'
import type { ImageStore } from '../../src/drivers/image/driver.ts'
import { imageStore } from '../../src/drivers/image/store.ts'
import type { Supervisor } from '../../src/drivers/s6/driver.ts'
import { s6Supervisor } from '../../src/drivers/s6/supervisor.ts'
import { newId } from '../../src/model/ids.ts'
import type { BoxSpec } from '../../src/model/sandbox/box.ts'
import { type ExitResult, waitForExit } from './child.ts'
import { loopbackPolicy } from './outbound.ts'
import { removeTemporaryHome, temporaryDirectory } from './temporary-home.ts'
import { until } from './until.ts'

export interface BoxBench {
  directory: string
  home: Home
  supervisor: Supervisor
  images: ImageStore
  boxes: BoxDriver
  newSpec(limits?: Partial<BoxSpec['limits']>): BoxSpec
  /** Returns a running box. */
  newBox(limits?: Partial<BoxSpec['limits']>): Promise<BoxSpec>
  run(
    spec: BoxSpec,
    argv: BoxCommand['argv'],
    options?: Omit<BoxCommand, 'argv'> & { input?: string },
  ): Promise<ExitResult>
  sh(spec: BoxSpec, script: string): Promise<ExitResult>
  /** Waits for the first process and returns its pid on the host. */
  pidOf(spec: BoxSpec): Promise<number>
  remove(): Promise<void>
}

/** Opens a temporary home with real boxes. Its number is registered, because interfaces and addresses follow from it. */
export async function openBoxBench(
  ability?: BoxAbility,
  directory = temporaryDirectory(),
  upstreams?: string[],
): Promise<BoxBench> {
  const home = await openHome(`${directory}/h`, { uidBase: 300_000 })
  const supervisor = s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
  await supervisor.ensureTree()
  const cgroups = cgroupDriver()
  const images = imageStore({ home, policy: loopbackPolicy() })
  const boxes = boxDriver({
    home,
    supervisor,
    cgroups,
    images,
    ...(ability && { ability }),
    ...(upstreams && { upstreams }),
  })
  const specs: BoxSpec[] = []

  function newSpec(limits: Partial<BoxSpec['limits']> = {}): BoxSpec {
    const slot = specs.length + 1
    const spec = {
      id: newId(),
      slot,
      hostname: `box-${slot}`,
      limits: { memoryMb: 512, cpus: 2, pids: 500, ...limits },
    }
    specs.push(spec)
    return spec
  }

  async function newBox(limits?: Partial<BoxSpec['limits']>): Promise<BoxSpec> {
    const spec = newSpec(limits)
    await boxes.ensureBox(spec)
    return spec
  }

  function run(spec: BoxSpec, argv: BoxCommand['argv'], { input = '', ...rest } = {}): Promise<ExitResult> {
    return waitForExit(boxes.spawnInBox(spec, { argv, ...rest }), input)
  }

  async function pidOf(spec: BoxSpec): Promise<number> {
    let pid = 0
    await until(async () => {
      const state = await boxes.inspectBox(spec.id)
      if (state.is === 'up') pid = state.pid
      return state.is === 'up'
    })
    return pid
  }

  return {
    directory,
    home,
    supervisor,
    images,
    boxes,
    newSpec,
    newBox,
    run,
    sh: (spec, script) => run(spec, ['sh', '-c', script]),
    pidOf,
    async remove() {
      for (const spec of specs) await boxes.removeBox(spec).catch(() => undefined)
      await supervisor.stopTree({ timeoutSeconds: 10 })
      await removeCgroups(home)
      await removeNetwork(home)
      await removeTemporaryHome(directory)
    },
  }
}

/** The names of all network interfaces of the host. */
export function listLinks(): string[] {
  return readdirSync('/sys/class/net')
}
