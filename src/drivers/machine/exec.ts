import type { ChildProcess } from 'node:child_process'
import type { ExecTarget } from '../../model/app/machine-spec.ts'
import { filterFile, readSetup } from '../box/disk.ts'
import type { BoxCommand, BoxSession, SessionEvents, SessionStart } from '../box/driver.ts'
import { type Entrance, enterRequest, renderEntry } from '../box/enter/enter.ts'
import { startSession } from '../box/enter/session.ts'
import { ensureSocket } from '../box/enter/session-socket.ts'
import type { EnterSpares } from '../box/enter/spare.ts'
import { boxUid } from '../box/paths.ts'
import { ensureFreezer } from '../host/cgroup-freezer.ts'
import { spawnWithPipes } from '../host/process.ts'
import { workingDirectory } from './disk.ts'
import { groupName, type MachineHost } from './host.ts'
import { machinePaths } from './paths.ts'

export function spawnInMachine(host: MachineHost, target: ExecTarget, command: BoxCommand): ChildProcess {
  const { program, args, env } = renderEntry(boxEntrance(host, target), command)
  return spawnWithPipes(program, args, { env, cwd: '/' })
}

/** Holds the command as those of sandboxes are, so that it can have a terminal. */
export function startSessionInMachine(
  host: MachineHost,
  spares: EnterSpares,
  target: ExecTarget,
  command: BoxCommand,
  start: SessionStart,
  events: SessionEvents,
): BoxSession {
  const request = enterRequest(boxEntrance(host, target), command)
  return startSession(spares, request, ensureSocket(host.home, target.id, start.id), start).follow(events)
}

function boxEntrance({ home, cgroups }: MachineHost, target: ExecTarget): Entrance {
  const paths = machinePaths(home, target.id)
  const mode = readSetup(paths)?.mode
  if (mode === undefined) throw new Error(`there is no machine ${target.id}`)
  const procs = cgroups.findCgroup(groupName(home, target.id))
  return {
    mode,
    service: paths.service,
    uid: boxUid(home, target.slot) ?? process.getuid!(),
    cgroup: [...procs, ...ensureFreezer(procs)],
    filter: filterFile(home),
    isMinimal: false,
    home: workingDirectory(target),
    env: {},
    machine: {
      user: target.user,
      env: target.env,
      ...(target.container && { container: target.container }),
    },
  }
}
