import { Type } from 'typebox'
import { getMachine } from '../../actions/app/machine.ts'
import {
  cordonMachine,
  restartMachineOf,
  startMachineOf,
  stopMachineOf,
  suspendMachineOf,
} from '../../actions/app/machine-command.ts'
import {
  listProcessesOf,
  readMemory,
  reclaimMemoryOf,
  runInMachine,
  setMemory,
  signalMachineOf,
} from '../../live/app/machine.ts'
import { waitForMachine } from '../../live/app/machine-wait.ts'
import { badRequest } from '../../model/errors.ts'
import { splitWords } from '../../model/words.ts'
import { type Route, route } from '../http/route.ts'
import {
  ByMachine,
  flag,
  foreignApp,
  isSet,
  keyOf,
  leased,
  machineAbsent,
  notAllowed,
  Ok,
  wrongStateNow,
} from './machine.ts'

const Signal = Type.Union([Type.String(), Type.Integer()], {
  description: 'A name such as `SIGTERM`, or a number.',
  examples: ['SIGHUP'],
})
const Duration = Type.Union([Type.String(), Type.Integer()], {
  description: 'Such as `10s`, or nanoseconds; then it is ended with SIGKILL. At most 5 minutes.',
})

const base = '/v1/apps/{app_name}/machines/{machine_id}'
const commandErrors = { 403: notAllowed, 404: machineAbsent, 409: leased, 412: wrongStateNow }
const longestWaitSeconds = 60
const presetExecSeconds = 30
const longestExecSeconds = 300

const MemoryView = Type.Object({ limit_mb: Type.Integer(), available_mb: Type.Integer() }, { title: 'MachineMemory' })

export const machineCommandRoutes: Route[] = [
  route({
    method: 'POST',
    path: `${base}/start`,
    id: 'startMachine',
    tag: 'Machines',
    summary: 'Start a machine',
    description:
      'One that was suspended goes on where it was. What was written to its root is gone after a stop, unless it is kept.',
    scope: 'write',
    machineSelf: true,
    params: ByMachine,
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
    description: 'It is told with the signal of its configuration, SIGINT by default, and killed after the timeout.',
    scope: 'write',
    machineSelf: true,
    params: ByMachine,
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
    description: 'One that runs or has failed. One that was stopped has nothing to end: start it.',
    scope: 'write',
    machineSelf: true,
    params: ByMachine,
    query: Type.Object({
      timeout: Type.Optional(Type.String({ description: 'Such as `10s`, or seconds.' })),
      signal: Type.Optional(Type.String({ description: 'With which it is told to stop.' })),
      force_stop: flag('Kill it at once.'),
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
    summary: 'Hold a machine still',
    description: 'Its processes stay in memory and go on with the next start.',
    scope: 'write',
    machineSelf: true,
    params: ByMachine,
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
    machineSelf: true,
    params: ByMachine,
    body: Type.Object({ signal: Signal }),
    status: 200,
    response: Ok,
    errors: { 403: notAllowed, 404: machineAbsent, 412: 'It does not run.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => {
      await signalMachineOf(ctx, params.app_name, params.machine_id, body.signal)
      return { ok: true }
    },
  }),
  ...(['cordon', 'uncordon'] as const).map((word) =>
    route({
      method: 'POST',
      path: `${base}/${word}`,
      id: `${word}Machine`,
      tag: 'Machines',
      summary: word === 'cordon' ? 'Lead nothing to a machine any more' : 'Lead requests to a machine again',
      scope: 'write',
      machineSelf: true,
      params: ByMachine,
      status: 200,
      response: Ok,
      errors: { 403: notAllowed, 404: machineAbsent, 409: leased },
      wrongTypeStatus: 400,
      run: async (call) => {
        await cordonMachine(call.ctx, keyOf(call), word === 'cordon')
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
    machineSelf: true,
    params: ByMachine,
    query: Type.Object({
      state: Type.Optional(
        Type.Union([Type.String(), Type.Array(Type.String())], {
          description: '`started` when omitted; several with commas or repeated; `settled` for any in which it stays.',
        }),
      ),
      version: Type.Optional(Type.String({ description: 'Of this version.' })),
      instance_id: Type.Optional(Type.String({ description: 'The same as `version`, for older clients.' })),
      from_event_id: Type.Optional(Type.String({ description: 'Only what came after this event counts.' })),
      timeout: Type.Optional(
        Type.Integer({
          minimum: 0,
          description: `Seconds, at most ${longestWaitSeconds}, which is also what is waited when omitted.`,
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
      404: machineAbsent,
      408: 'It was not in that state in time.',
      412: 'It cannot get there any more: it is destroyed, or the version was replaced.',
    },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query, search }) => {
      const words = search.getAll('state').flatMap((text) => text.split(','))
      const states = words.map((word) => word.trim()).filter(Boolean)
      const { state, version, eventId } = await waitForMachine(ctx, params.app_name, params.machine_id, {
        states: states.length > 0 ? states : ['started'],
        version: query.version || query.instance_id || '',
        fromEventId: query.from_event_id ?? '',
        timeoutSeconds: Math.min(query.timeout ?? longestWaitSeconds, longestWaitSeconds),
      })
      return { ok: true, state, version, event_id: eventId }
    },
  }),
  route({
    method: 'POST',
    path: `${base}/exec`,
    id: 'execInMachine',
    tag: 'Machines',
    summary: 'Run a command in a machine',
    description: 'Answers when it has ended, with the first MiB of what it wrote to each stream.',
    scope: 'write',
    machineSelf: true,
    params: ByMachine,
    body: Type.Object(
      {
        command: Type.Optional(Type.Array(Type.String(), { description: 'Word by word.' })),
        cmd: Type.Optional(Type.String({ description: 'The same as one text, for older clients.' })),
        container: Type.Optional(Type.String({ description: 'Refused: there are none.' })),
        machine: Type.Optional(Type.Boolean({ description: 'Without effect.' })),
        stdin: Type.Optional(Type.String({ description: 'What it reads.' })),
        timeout: Type.Optional(
          Type.Integer({
            minimum: 0,
            maximum: longestExecSeconds,
            description: `Seconds until it is killed; ${presetExecSeconds} when omitted.`,
            refusal: `timeout must be from 0 to ${longestExecSeconds} seconds`,
          }),
        ),
      },
      { examples: [{ command: ['uname', '-a'] }] },
    ),
    ignoreNulls: true,
    status: 200,
    response: Type.Object({
      exit_code: Type.Integer(),
      exit_signal: Type.Integer(),
      stdout: Type.String(),
      stderr: Type.String(),
    }),
    errors: {
      403: notAllowed,
      404: machineAbsent,
      408: 'It did not end in time, and was killed.',
      412: 'It does not run.',
    },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => {
      await getMachine(ctx, params.app_name, params.machine_id) // strangers learn nothing about the fields
      if (body.container) throw badRequest('container is not possible here: a machine runs one program')
      const words = body.command?.length ? body.command : splitWords('cmd', body.cmd ?? '')
      const [program, ...args] = words
      if (!program) throw badRequest('command is required')
      for (const word of words) if (word.includes('\0')) throw badRequest('command must not hold NUL characters')
      const result = await runInMachine(ctx, params.app_name, params.machine_id, {
        argv: [program, ...args],
        stdin: body.stdin ?? '',
        timeoutSeconds: body.timeout || presetExecSeconds,
      })
      return {
        exit_code: result.exitCode,
        exit_signal: result.exitSignal,
        stdout: result.stdout,
        stderr: result.stderr,
      }
    },
  }),
  route({
    method: 'GET',
    path: `${base}/ps`,
    id: 'listMachineProcesses',
    tag: 'Machines',
    summary: 'List the processes of a machine',
    scope: 'read',
    machineSelf: true,
    params: ByMachine,
    query: Type.Object({
      sort_by: Type.Optional(Type.Enum(['pid', 'stime', 'rtime', 'command', 'cpu', 'rss', 'directory'])),
      order: Type.Optional(Type.Enum(['asc', 'desc'])),
    }),
    status: 200,
    response: Type.Array(
      Type.Object(
        {
          pid: Type.Integer({ description: 'As seen inside.' }),
          stime: Type.Number({ description: 'Milliseconds on a CPU, in the kernel.' }),
          rtime: Type.Number({ description: 'Milliseconds since it was started.' }),
          command: Type.String(),
          directory: Type.String(),
          cpu: Type.Number(),
          rss: Type.Number({ description: 'Bytes in memory.' }),
          listen_sockets: Type.Array(Type.Object({ proto: Type.String(), address: Type.String() })),
        },
        { title: 'MachineProcess' },
      ),
    ),
    errors: { 403: foreignApp, 404: machineAbsent, 412: 'It does not run.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const processes = await listProcessesOf(ctx, params.app_name, params.machine_id)
      const key = query.sort_by ?? 'pid'
      const direction = query.order === 'desc' ? -1 : 1
      return processes.sort((a, b) => (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0) * direction)
    },
  }),
  route({
    method: 'GET',
    path: `${base}/memory`,
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
    path: `${base}/memory`,
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
    path: `${base}/memory/reclaim`,
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
