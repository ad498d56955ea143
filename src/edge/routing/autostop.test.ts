import { expect, test } from 'vitest'
import type { MachineService } from '../../model/app/machine-config.ts'
import type { RunningMachine } from '../../store/app/machine-load.ts'
import { chooseIdleMachine } from './autostop.ts'

const running = (id: string, load: number, changes: Partial<MachineService> = {}): RunningMachine => ({
  id,
  appId: 'a1',
  region: 'ams',
  services: [{ internal_port: 8080, autostop: true, concurrency: { soft_limit: 10 }, ...changes }],
  load,
  isSettled: true,
})

test.each<[string, RunningMachine[], unknown]>([
  ['an idle machine', [running('a', 0)], { id: 'a', how: 'stop' }],
  ['not one with requests', [running('a', 1)], undefined],
  ['not below min_machines_running', [running('a', 0, { min_machines_running: 1 })], undefined],
  ['the least loaded of several', [running('a', 5), running('b', 2), running('c', 9)], { id: 'b', how: 'stop' }],
  ['not if the other one is above its soft limit', [running('a', 11), running('b', 0)], undefined],
  [
    'the least loaded if two others remain',
    [running('a', 11), running('b', 3), running('c', 1)],
    { id: 'c', how: 'stop' },
  ],
  ['by suspending it', [running('a', 0, { autostop: 'suspend' })], { id: 'a', how: 'suspend' }],
  ['not one that was just started', [{ ...running('a', 0), isSettled: false }], undefined],
])('autostop stops %s', (_name, group, chosen) => {
  expect(chooseIdleMachine(group)).toEqual(chosen)
})
