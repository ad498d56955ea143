import { Type } from 'typebox'
import { readMemory, reclaimMemoryOf, setMemory } from '../../live/app/machine.ts'
import { type Route, route } from '../http/route.ts'
import { ByMachine, foreignApp, machineAbsent, notAllowed } from './machine.ts'

const base = '/v1/apps/{app_name}/machines/{machine_id}/memory'

const MemoryView = Type.Object({ limit_mb: Type.Integer(), available_mb: Type.Integer() }, { title: 'MachineMemory' })

export const machineMemoryRoutes: Route[] = [
  route({
    method: 'GET',
    path: base,
    id: 'getMachineMemory',
    tag: 'Machines',
    summary: 'Show the memory of a machine',
    scope: 'read',
    machineSelf: true,
    params: ByMachine,
    status: 200,
    response: MemoryView,
    errors: { 403: foreignApp, 404: machineAbsent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => {
      const { limitMb, availableMb } = await readMemory(ctx, params.app_name, params.machine_id)
      return { limit_mb: limitMb, available_mb: availableMb }
    },
  }),
  route({
    method: 'PUT',
    path: base,
    id: 'setMachineMemory',
    tag: 'Machines',
    summary: 'Give a machine that runs more or less memory',
    description:
      'At most `max_memory_mb` of its configuration, or `memory_mb` without one, and no less than it uses. Until its next start, which gives it `memory_mb` again.',
    scope: 'write',
    machineSelf: true,
    params: ByMachine,
    body: Type.Object({ limit_mb: Type.Integer({ minimum: 1, examples: [512] }) }),
    status: 200,
    response: MemoryView,
    errors: {
      403: notAllowed,
      404: machineAbsent,
      412: 'It does not run, uses more, or this host has no control groups.',
    },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => {
      const { limitMb, availableMb } = await setMemory(ctx, params.app_name, params.machine_id, body.limit_mb)
      return { limit_mb: limitMb, available_mb: availableMb }
    },
  }),
  route({
    method: 'POST',
    path: `${base}/reclaim`,
    id: 'reclaimMachineMemory',
    tag: 'Machines',
    summary: 'Ask a machine to give memory back',
    description:
      'What it can read from files again, and with swap more; as much as it can when no amount is given. The answer is what the host got back, which is 0 where it has no control groups.',
    scope: 'write',
    machineSelf: true,
    params: ByMachine,
    body: Type.Object({ amount_mb: Type.Optional(Type.Integer({ minimum: 0 })) }),
    status: 200,
    response: Type.Object({ actual_mb: Type.Integer() }),
    errors: { 403: notAllowed, 404: machineAbsent, 412: 'It does not run.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => ({
      actual_mb: await reclaimMemoryOf(ctx, params.app_name, params.machine_id, body.amount_mb),
    }),
  }),
]
