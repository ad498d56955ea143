import { Type } from 'typebox'
import {
  cordonMachine,
  restartMachineOf,
  startMachineOf,
  stopMachineOf,
  suspendMachineOf,
} from '../../actions/app/machine-command.ts'
import { signalMachineOf } from '../../live/app/machine.ts'
import { waitForMachine } from '../../live/app/machine-wait.ts'
import { type Route, route } from '../http/route.ts'
import { foreignApp, leased, noMachine, notAllowed, wrongState } from './error-text.ts'
import { flag, isSet, keyOf, Ok } from './machine.ts'
import { ByMachine, LeaseHeader } from './params.ts'

const Signal = Type.Union([Type.String(), Type.Integer()], {
  description: 'A name such as `SIGTERM`, or a number.',
  examples: ['SIGHUP'],
})
const Duration = Type.Union([Type.String(), Type.Integer()], {
  description: 'Such as `10s`, or nanoseconds; SIGKILL is sent after it. At most 5 minutes.',
})

const base = '/v1/apps/{app_name}/machines/{machine_id}'
const commandErrors = { 403: notAllowed, 404: noMachine, 409: leased, 412: wrongState }
const maxWaitSeconds = 60

export const machineCommandRoutes: Route[] = [
  route({
    method: 'POST',
    path: `${base}/start`,
    id: 'startMachine',
    tag: 'Machines',
    summary: 'Start a machine',
    description: 'A suspended machine resumes. After a stop, the root file system is reset unless it is persistent.',
    scope: 'write',
    action: 'control',
    machineSelf: true,
    params: ByMachine,
    headers: LeaseHeader,
    status: 200,
    response: Type.Object({ previous_state: Type.String(), migrated: Type.Boolean(), new_host: Type.String() }),
    errors: commandErrors,
    wrongTypeStatus: 400,
    run: async (call) => ({
      previous_state: await startMachineOf(call.ctx, keyOf(call)),
      migrated: false,
      new_host: '',
    }),
  }),
  route({
    method: 'POST',
    path: `${base}/stop`,
    id: 'stopMachine',
    tag: 'Machines',
    summary: 'Stop a machine',
    description: 'Sends the signal of its configuration, by default SIGINT, and SIGKILL after the timeout.',
    scope: 'write',
    action: 'control',
    machineSelf: true,
    params: ByMachine,
    headers: LeaseHeader,
    body: Type.Object({ signal: Type.Optional(Signal), timeout: Type.Optional(Duration) }),
    ignoreNulls: true,
    status: 200,
    response: Ok,
    errors: commandErrors,
    wrongTypeStatus: 400,
    run: async (call) => {
      await stopMachineOf(call.ctx, keyOf(call), call.body)
      return { ok: true }
    },
  }),
  route({
    method: 'POST',
    path: `${base}/restart`,
    id: 'restartMachine',
    tag: 'Machines',
    summary: 'Restart a machine',
    description: 'The machine must be running or failed; use start for a stopped one.',
    scope: 'write',
    action: 'control',
    machineSelf: true,
    params: ByMachine,
    headers: LeaseHeader,
    query: Type.Object({
      timeout: Type.Optional(Type.String({ description: 'Such as `10s`, or seconds.' })),
      signal: Type.Optional(Type.String({ description: 'The signal that stops it.' })),
      force_stop: flag('Send SIGKILL immediately.'),
    }),
    status: 200,
    response: Ok,
    errors: commandErrors,
    wrongTypeStatus: 400,
    run: async (call) => {
      const { timeout, signal, force_stop } = call.query
      await restartMachineOf(call.ctx, keyOf(call), { timeout, signal, force: isSet(force_stop) })
      return { ok: true }
    },
  }),
  route({
    method: 'POST',
    path: `${base}/suspend`,
    id: 'suspendMachine',
    tag: 'Machines',
    summary: 'Suspend a machine',
    description: 'Its processes are frozen in memory and resume with the next start.',
    scope: 'write',
    action: 'control',
    machineSelf: true,
    params: ByMachine,
    headers: LeaseHeader,
    status: 200,
    response: Ok,
    errors: commandErrors,
    wrongTypeStatus: 400,
    run: async (call) => {
      await suspendMachineOf(call.ctx, keyOf(call))
      return { ok: true }
    },
  }),
  route({
    method: 'POST',
    path: `${base}/signal`,
    id: 'signalMachine',
    tag: 'Machines',
    summary: 'Send a signal to the program of a machine',
    scope: 'write',
    action: 'control',
    machineSelf: true,
    params: ByMachine,
    body: Type.Object({ signal: Signal }),
    status: 200,
    response: Ok,
    errors: { 403: notAllowed, 404: noMachine, 412: 'The machine is not running.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => {
      await signalMachineOf(ctx, params.app_name, params.machine_id, body.signal)
      return { ok: true }
    },
  }),
  ...(['cordon', 'uncordon'] as const).map((command) =>
    route({
      method: 'POST',
      path: `${base}/${command}`,
      id: `${command}Machine`,
      action: 'control',
      tag: 'Machines',
      summary: command === 'cordon' ? 'Stop routing requests to a machine' : 'Route requests to a machine again',
      scope: 'write',
      machineSelf: true,
      params: ByMachine,
      headers: LeaseHeader,
      status: 200,
      response: Ok,
      errors: { 403: notAllowed, 404: noMachine, 409: leased },
      wrongTypeStatus: 400,
      run: async (call) => {
        await cordonMachine(call.ctx, keyOf(call), command === 'cordon')
        return { ok: true }
      },
    }),
  ),
  route({
    method: 'GET',
    path: `${base}/wait`,
    id: 'waitForMachine',
    tag: 'Machines',
    summary: 'Wait until a machine is in a state',
    scope: 'read',
    waits: true,
    machineSelf: true,
    params: ByMachine,
    query: Type.Object({
      state: Type.Optional(
        Type.Union([Type.String(), Type.Array(Type.String())], {
          description:
            '`started` when omitted; several are separated by commas or repeated; `settled` stands for any stable state.',
        }),
      ),
      version: Type.Optional(Type.String({ description: 'Only in this version.' })),
      instance_id: Type.Optional(Type.String({ description: 'Alias of `version`, for older clients.' })),
      from_event_id: Type.Optional(Type.String({ description: 'Ignore states before this event.' })),
      timeout: Type.Optional(
        Type.Integer({
          minimum: 0,
          description: `Seconds; ${maxWaitSeconds} when omitted or larger.`,
          refusal: 'timeout must be a number of seconds',
        }),
      ),
    }),
    status: 200,
    response: Type.Object({
      ok: Type.Boolean(),
      state: Type.String(),
      version: Type.String(),
      event_id: Type.String(),
    }),
    errors: {
      403: foreignApp,
      404: noMachine,
      408: 'The timeout expired before the machine was in that state.',
      412: 'The machine cannot reach that state: it was destroyed, or the version was replaced.',
    },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query, search }) => {
      const words = search.getAll('state').flatMap((text) => text.split(','))
      const states = words.map((word) => word.trim()).filter(Boolean)
      const { state, version, eventId } = await waitForMachine(ctx, params.app_name, params.machine_id, {
        states: states.length > 0 ? states : ['started'],
        version: query.version || query.instance_id || '',
        fromEventId: query.from_event_id ?? '',
        timeoutSeconds: Math.min(query.timeout ?? maxWaitSeconds, maxWaitSeconds),
      })
      return { ok: true, state, version, event_id: eventId }
    },
  }),
]
