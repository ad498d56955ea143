import type { MachineExit, MachineProcess } from '../../drivers/machine/driver.ts'
import type { ExitEvent, Machine } from '../../model/app/machine.ts'
import { insertMachineEvent } from '../../store/app/machine-event.ts'
import { insertExits } from '../../store/app/machine-progress.ts'
import type { Tx } from '../../store/db.ts'

/** Returns the exits that have not become events yet. */
export function newExits(machine: Machine, process: MachineProcess): MachineExit[] {
  return process.is === 'absent' ? [] : process.exits.filter(({ number }) => number > machine.exitsSeen)
}

/** Turns exits into events. The number of the last one is stored with them, so each exit becomes an event once. */
export async function recordExits(tx: Tx, machine: Machine, exits: MachineExit[]): Promise<void> {
  const last = exits.at(-1)
  if (!last) return
  let restarts = machine.restartCount
  let before: MachineExit | undefined
  for (const exit of exits) {
    if (exit.container !== undefined) {
      const request = { exit_event: exitEvent(exit) }
      await insertMachineEvent(tx, machine.id, { type: 'exit', status: 'started', source: 'flyd', request })
      continue
    }
    // A start of which no record was made, because the control plane was killed: a program that is down does not exit.
    if (before && !before.restarting)
      await insertMachineEvent(tx, machine.id, { type: 'start', status: 'started', source: 'flyd' })
    before = exit
    if (exit.restarting) restarts++
    const request = { exit_event: exitEvent(exit), restart_count: restarts }
    await insertMachineEvent(tx, machine.id, { type: 'exit', status: 'stopped', source: 'flyd', request })
    if (!exit.restarting) continue
    const restart = { restart_count: restarts }
    await insertMachineEvent(tx, machine.id, { type: 'restart', status: 'starting', source: 'flyd', request: restart })
  }
  await insertExits(tx, machine.id, {
    number: last.number,
    restarts: restarts - machine.restartCount,
    last: exitEvent(last),
    nextRestartAt: last.restarting && last.container === undefined ? last.at + last.restartSeconds * 1000 : undefined,
  })
}

/**
 * Records that an update ended the previous version. Clients judge a machine by its newest exit, which would otherwise be
 * a crash of the previous version. A program that was between two restarts, or whose exit is no longer known, did not exit
 * once more; then the event repeats how it last ended.
 */
export async function recordReplacedExit(tx: Tx, machine: Machine, last: MachineExit | undefined): Promise<void> {
  const unknown = { number: 0, at: Date.now(), exitCode: 0, signal: 0, oomKilled: false, restartSeconds: 0 }
  const request = {
    exit_event: exitEvent({ ...(last ?? unknown), requested: true, restarting: false }),
    restart_count: 0,
  }
  await insertMachineEvent(tx, machine.id, { type: 'exit', status: 'stopped', source: 'flyd', request })
}

function exitEvent(exit: MachineExit): ExitEvent {
  return {
    exit_code: exit.exitCode,
    guest_exit_code: exit.signal === 0 ? exit.exitCode : 0,
    guest_signal: exit.signal === 0 ? -1 : exit.signal,
    guest_error: '',
    oom_killed: exit.oomKilled,
    requested_stop: exit.requested,
    restarting: exit.restarting,
    signal: exit.signal === 0 ? -1 : exit.signal,
    error: '',
    exited_at: new Date(exit.at).toISOString(),
    ...(exit.container !== undefined && { container: exit.container }),
  }
}

export function describeExit({ exitCode, signal, oomKilled }: MachineExit): string {
  if (oomKilled) return 'its program ran out of memory'
  return signal === 0 ? `its program exited with code ${exitCode}` : `its program was killed by signal ${signal}`
}
