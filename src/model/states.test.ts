import { expect, test } from 'vitest'
import { machineStates } from './app/machine.ts'
import { snapshotStates, volumeStates } from './app/volume.ts'
import { backupStates } from './postgres/backup.ts'
import { clusterStates } from './postgres/cluster.ts'
import { sandboxStates } from './sandbox/sandbox.ts'
import { nextState, type StateTable } from './states.ts'

test('a refusal offers only commands that are operations of the API', () => {
  const tables: StateTable[] = [machineStates, volumeStates, snapshotStates, sandboxStates, clusterStates, backupStates]
  const offered = new Set<string>()
  for (const table of tables) {
    for (const state of Object.keys(table)) {
      try {
        nextState(table, state, 'something else')
      } catch (error) {
        const [, list] = /possible now: (.*)/.exec((error as Error).message) ?? []
        for (const command of list?.split(', ') ?? []) offered.add(command)
      }
    }
  }
  const operations = ['delete', 'extend', 'recover', 'restart', 'start', 'stop', 'suspend', 'update']
  expect([...offered].sort()).toEqual(operations)
})
