import { Type } from 'typebox'
import { readMemory, reclaimMemoryOf, setMemory } from '../../live/app/machine-memory.ts'
import { type Route, route } from '../http/route.ts'
import { foreignApp, noMachine, notAllowed } from './error-text.ts'
import { ByMachine } from './params.ts'

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
    errors: { 403: foreignApp, 404: noMachine },
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
    summary: 'Change the memory limit of a running machine',
    description:
      'At most `max_memory_mb` of its configuration, or else `memory_mb`, and at least the memory in use. The next start resets it to `memory_mb`.',
    scope: 'write',
    machineSelf: true,
    params: ByMachine,
    body: Type.Object({ limit_mb: Type.Integer({ minimum: 1, examples: [512] }) }),
    status: 200,
    response: MemoryView,
    errors: {
      403: notAllowed,
      404: noMachine,
      412: 'The machine is not running, uses more memory, or the host has no control groups.',
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
    summary: 'Reclaim memory of a machine',
    description:
      'Evicts file caches and, with swap, further pages; as much as possible without an amount. Returns the reclaimed amount, which is 0 on a host without control groups.',
    scope: 'write',
    action: 'control',
    machineSelf: true,
    params: ByMachine,
    body: Type.Object({ amount_mb: Type.Optional(Type.Integer({ minimum: 0 })) }),
    status: 200,
    response: Type.Object({ actual_mb: Type.Integer() }),
    errors: { 403: notAllowed, 404: noMachine, 412: 'The machine is not running.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => ({
      actual_mb: await reclaimMemoryOf(ctx, params.app_name, params.machine_id, body.amount_mb),
    }),
  }),
]
