import type { ChildProcess } from 'node:child_process'
import type { MachineEntrance } from '../../model/app/machine-spec.ts'
import { filterFile, readMaking } from '../box/disk.ts'
import type { BoxCommand } from '../box/driver.ts'
import { type Entrance, renderEntry } from '../box/enter/enter.ts'
import { boxUid } from '../box/paths.ts'
import { ensureFreezer } from '../host/cgroup-freezer.ts'
import { spawnWithPipes } from '../host/process.ts'
import { workingDirectory } from './disk.ts'
import { groupName, type MachineHost } from './host.ts'
import { machinePaths } from './paths.ts'

export function spawnInMachine(host: MachineHost, machine: MachineEntrance, command: BoxCommand): ChildProcess {
  const { program, args, env } = renderEntry(boxEntrance(host, machine), command, false)
  return spawnWithPipes(program, args, { env, cwd: '/' })
}

function boxEntrance({ home, cgroups }: MachineHost, machine: MachineEntrance): Entrance {
  const paths = machinePaths(home, machine.id)
  const way = readMaking(paths)?.way
  if (way === undefined) throw new Error(`there is no machine ${machine.id}`)
  const procs = cgroups.findCgroup(groupName(home, machine.id))
  return {
    way,
    service: paths.service,
    uid: boxUid(home, machine.slot) ?? process.getuid!(),
    cgroup: [...procs, ...ensureFreezer(procs)],
    filter: filterFile(home),
    isMinimal: false,
    home: workingDirectory(machine),
    env: {},
    machine: { user: machine.user, env: machine.env },
  }
}
