import type { MachineDetails } from '../../model/app/machine.ts'
import type { Tx } from '../db.ts'
import { launchMachine, scheduleInterval } from './machine-command.ts'

/** Starts the machines whose scheduled time has come. One that still runs skips this start. */
export async function startScheduled(tx: Tx): Promise<string[]> {
  const { rows } = await tx.query<{ id: string; config: MachineDetails['config']; state: string }>(
    `select id, config, state from machine where next_start_at <= now() order by next_start_at limit 100
     for update skip locked`,
  )
  for (const machine of rows) {
    if (['created', 'stopped', 'failed'].includes(machine.state)) await launchMachine(tx, machine, 'start', 'flyd')
    else {
      const interval = scheduleInterval(machine.config)
      await tx.query('update machine set next_start_at = now() + $2::interval where id = $1', [machine.id, interval])
    }
  }
  return rows.map((row) => row.id)
}
