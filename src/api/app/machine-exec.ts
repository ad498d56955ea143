import { Type } from 'typebox'
import { listProcessesOf, requireMachineWriter, runInMachine } from '../../live/app/machine.ts'
import { badRequest } from '../../model/errors.ts'
import { splitWords } from '../../model/words.ts'
import { type Route, route } from '../http/route.ts'
import { foreignApp, noMachine, notAllowed } from './error-text.ts'
import { ByMachine } from './params.ts'

const base = '/v1/apps/{app_name}/machines/{machine_id}'
const defaultExecSeconds = 30
const maxExecSeconds = 300
const maxWords = 10_000
/** Linux allows 128 KiB for one argument. */
const maxLineLength = 128 * 1024

export const machineExecRoutes: Route[] = [
  route({
    method: 'POST',
    path: `${base}/exec`,
    id: 'execInMachine',
    action: 'control',
    targets: ({ params, body }) => [
      { app: params.app_name!, machine: params.machine_id!, command: (isCommand(body) && wordsOf(body)) || [] },
    ],
    tag: 'Machines',
    summary: 'Run a command in a machine',
    description:
      'Responds when the command has ended, with the first MiB of each output stream. A WebSocket at this path (GET) runs a command with the parameters `cmd` (one per word), `dir`, `env`, `stdin`, `tty`, `rows` and `cols`, and the messages of the exec operations of sandboxes; the command ends 10 seconds after its client is gone.',
    scope: 'write',
    waits: true,
    machineSelf: true,
    params: ByMachine,
    body: Type.Object(
      {
        command: Type.Optional(
          Type.Array(Type.String(), { maxItems: maxWords, description: 'The command as a list of arguments.' }),
        ),
        cmd: Type.Optional(
          Type.String({ maxLength: maxLineLength, description: 'The command as one string, for older clients.' }),
        ),
        container: Type.Optional(
          Type.String({
            description: 'The container to run it in; when omitted the one called `app`, or the first.',
            examples: ['web'],
          }),
        ),
        machine: Type.Optional(
          Type.Boolean({ description: 'Not possible in a machine with containers, which has no other filesystem.' }),
        ),
        stdin: Type.Optional(Type.String({ description: 'The standard input of the command.' })),
        timeout: Type.Optional(
          Type.Integer({
            minimum: 0,
            maximum: maxExecSeconds,
            description: `Seconds after which the command is killed; ${defaultExecSeconds} when omitted.`,
            refusal: `timeout must be from 0 to ${maxExecSeconds} seconds`,
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
      404: noMachine,
      408: 'The command did not end within the timeout and was killed.',
      412: 'The machine is not running.',
    },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => {
      await requireMachineWriter(ctx, params.app_name, params.machine_id) // before the command is parsed
      if (body.container && body.machine) throw badRequest('container and machine exclude each other')
      const words = wordsOf(body)
      if (!words) throw badRequest('cmd has a quote that is not closed')
      const [program, ...args] = words
      if (!program) throw badRequest('command is required')
      for (const word of words) if (word.includes('\0')) throw badRequest('command must not contain NUL characters')
      const result = await runInMachine(ctx, params.app_name, params.machine_id, {
        argv: [program, ...args],
        stdin: body.stdin ?? '',
        timeoutSeconds: body.timeout || defaultExecSeconds,
        ...(body.container && { container: body.container }),
        ...(body.machine && { outsideContainers: true }),
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
          pid: Type.Integer({ description: 'The process id inside the machine or its container.' }),
          stime: Type.Number({ description: 'Milliseconds of CPU time in the kernel.' }),
          rtime: Type.Number({ description: 'Milliseconds since it was started.' }),
          command: Type.String(),
          directory: Type.String(),
          container: Type.Optional(Type.String({ examples: ['web'] })),
          cpu: Type.Number(),
          rss: Type.Number({ description: 'Bytes in memory.' }),
          listen_sockets: Type.Array(Type.Object({ proto: Type.String(), address: Type.String() })),
        },
        { title: 'MachineProcess' },
      ),
    ),
    errors: { 403: foreignApp, 404: noMachine, 412: 'The machine is not running.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const processes = await listProcessesOf(ctx, params.app_name, params.machine_id)
      const key = query.sort_by ?? 'pid'
      const direction = query.order === 'desc' ? -1 : 1
      return processes.sort((a, b) => (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0) * direction)
    },
  }),
]

interface Command {
  command?: string[]
  cmd?: string
}

/** Undefined when a quote is not closed. */
function wordsOf({ command, cmd }: Command): string[] | undefined {
  return command?.length ? command : splitWords(cmd ?? '')
}

/** For bodies that were not validated yet. */
function isCommand(body: unknown): body is Command {
  const { command = [], cmd = '' } = Object(body) as Record<string, unknown>
  return Array.isArray(command) && command.every((word) => typeof word === 'string') && typeof cmd === 'string'
}
