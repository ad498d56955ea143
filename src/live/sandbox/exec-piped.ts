// A command that ends with this process.
import type { ChildProcess } from 'node:child_process'
import type { BoxCommands, BoxSession, SessionEvents } from '../../drivers/box/driver.ts'
import { startWithPipes } from '../process.ts'

/** The driver functions for the process that stands for a command on the host. */
type CommandControl = Pick<BoxCommands, 'signalCommand' | 'findCommandPid' | 'findCommandPath'>

export function startPiped(control: CommandControl, child: ChildProcess, events: SessionEvents): BoxSession {
  const running = startWithPipes(child, events)
  const { hostPid: _hostPid, ...functions } = running
  let path: string | undefined
  return {
    ...functions,
    get pid() {
      const { hostPid } = running
      return hostPid === undefined ? undefined : control.findCommandPid(hostPid)
    },
    get path() {
      const { hostPid } = running
      if (path === undefined && hostPid !== undefined) path = control.findCommandPath(hostPid)
      return path
    },
    signal(signal) {
      const { hostPid } = running
      if (hostPid !== undefined) control.signalCommand(hostPid, signal)
    },
    resize: () => undefined,
    setAttached: () => undefined,
    release: () => undefined,
    leave: () => undefined,
  }
}
