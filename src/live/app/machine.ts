import type { ChildProcess } from 'node:child_process'
import type { MachineProcess } from '../../drivers/machine/driver.ts'
import { requireWriter } from '../../model/account/caller.ts'
import { type ContainerPhase, type MachineContainer, mainContainer } from '../../model/app/container/config.ts'
import type { MachineDetails } from '../../model/app/machine.ts'
import { containerMachine, type ExecTarget, execTarget } from '../../model/app/machine-spec.ts'
import { BerthError, badRequest, preconditionFailed } from '../../model/errors.ts'
import { waitUntil } from '../../model/poll.ts'
import { signalName } from '../../model/signal.ts'
import { getVisibleMachine, readMachineEnvironment, type VisibleMachine } from '../../store/app/machine.ts'
import { type LiveContext, withDeadline } from '../context.ts'
import { startWithPipes } from '../process.ts'

export interface CommandRequest {
  argv: [string, ...string[]]
  stdin: string
  timeoutSeconds: number
  /** The main container when undefined; without meaning in a machine that runs one program. */
  container?: string
  /** Refused when the machine has containers. */
  outsideContainers?: boolean
}

export interface CommandResult {
  exitCode: number
  exitSignal: number
  stdout: string
  stderr: string
}

/** A container that is being started runs within a moment. */
const maxStartSeconds = 5

/** Output beyond this limit is dropped, for each stream. */
const maxOutputBytes = 1024 * 1024

/** Exit codes from 129 to 192 mean "killed by signal", as in a shell. */
const signalCodes = { above: 128, max: 192 }

export async function requireMachineWriter(ctx: LiveContext, app: string, id: string): Promise<void> {
  requireWriter((await getVisibleMachine(ctx.db, ctx.tokenHash, app, id)).caller)
}

export async function getStarted(
  ctx: LiveContext,
  app: string,
  id: string,
  access: 'read' | 'write',
): Promise<VisibleMachine> {
  const found = await getVisibleMachine(ctx.db, ctx.tokenHash, app, id)
  if (access === 'write') requireWriter(found.caller)
  if (found.machine.state !== 'started') {
    throw preconditionFailed(`failed_precondition: machine is ${found.machine.state}; this works once it is started`)
  }
  return found
}

export async function runInMachine(
  ctx: LiveContext,
  app: string,
  id: string,
  request: CommandRequest,
): Promise<CommandResult> {
  const { target } = await getExecTarget(ctx, app, id, request)
  return collectResult(ctx.machines.spawnInMachine(target, { argv: request.argv }), request)
}

/** A machine in which commands can be run now, and the container, if it has any: by default the main one. */
export async function getExecTarget(
  ctx: LiveContext,
  app: string,
  id: string,
  place: Pick<CommandRequest, 'container' | 'outsideContainers'> = {},
) {
  const {
    machine,
    app: { orgId },
  } = await getStarted(ctx, app, id, 'write')
  const container = chooseContainer(machine, place)
  const target = await buildExecTarget(ctx, machine, container)
  const isStarting = () => {
    const process = ctx.machines.inspectMachine(machine.id, machine.instanceId)
    return process.is === 'up' && stateOf(process, container) === 'starting'
  }
  await waitUntil(() => !isStarting(), maxStartSeconds)
  // Looked at last, because the machine may be removed at any moment until then.
  const process = ctx.machines.inspectMachine(machine.id, machine.instanceId)
  if (process.is !== 'up') {
    throw preconditionFailed(
      'failed_precondition: the program of the machine has exited; this works once it runs again',
    )
  }
  const state = stateOf(process, container)
  if (container && state !== 'running' && state !== 'stopping')
    throw preconditionFailed(
      `failed_precondition: the container ${container.name} is ${state}; this works once it runs`,
    )
  return { machine, orgId, target }
}

function stateOf(
  { containers }: Extract<MachineProcess, { is: 'up' }>,
  container: MachineContainer | undefined,
): ContainerPhase | undefined {
  return containers?.find(({ name }) => name === container?.name)?.state
}

function chooseContainer(
  { config }: MachineDetails,
  { container: name, outsideContainers }: Pick<CommandRequest, 'container' | 'outsideContainers'>,
): MachineContainer | undefined {
  const containers = config.containers ?? []
  if (outsideContainers && containers.length > 0)
    throw badRequest(
      'machine is not possible here: a machine with containers has no other filesystem; name a container',
    )
  if (name === undefined) return mainContainer(config)
  const found = containers.find((container) => container.name === name)
  if (found) return found
  const names = containers.map((container) => container.name).join(', ')
  throw badRequest(`the machine has no container ${name}; it has ${names || 'none'}`)
}

function collectResult(child: ChildProcess, { stdin, timeoutSeconds }: CommandRequest): Promise<CommandResult> {
  const output = [new BoundedOutput(maxOutputBytes), new BoundedOutput(maxOutputBytes)] as const
  return new Promise((resolve, reject) => {
    const timeout = setTimeout(() => {
      child.kill('SIGKILL')
      reject(new BerthError('timeout', `deadline_exceeded: the command did not exit within ${timeoutSeconds} s`))
    }, timeoutSeconds * 1000)
    const running = startWithPipes(child, {
      onOutput: (stream, data) => output[stream === 1 ? 0 : 1].append(data),
      onDrain: () => undefined,
      onEnd: (code) => {
        clearTimeout(timeout)
        const [stdout, stderr] = output.map((part) => part.text())
        const isSignal = code > signalCodes.above && code <= signalCodes.max
        resolve({
          exitCode: code,
          exitSignal: isSignal ? code - signalCodes.above : 0,
          stdout: stdout!,
          stderr: stderr!,
        })
      },
    })
    if (stdin) running.write(Buffer.from(stdin))
    running.endInput()
  })
}

async function buildExecTarget(
  ctx: Pick<LiveContext, 'db' | 'images' | 'encryptionKey' | 'settings' | 'hasPrivateNetworks'>,
  machine: MachineDetails,
  container: MachineContainer | undefined,
): Promise<ExecTarget> {
  const program = container ? containerMachine(machine, container) : machine
  const image = program.image && (await ctx.images.findImage(program.image.digest))
  if (!image) throw preconditionFailed('failed_precondition: the image of the machine is not on this host')
  const context = await readMachineEnvironment(ctx.db, machine.id, ctx.encryptionKey)
  const { homeNumber } = ctx.settings
  const hasPrivateNetworks = await ctx.hasPrivateNetworks()
  return execTarget(program, image, { ...context, homeNumber, hasPrivateNetworks }, container)
}

class BoundedOutput {
  private readonly parts: Buffer[] = []
  private bytes = 0
  private readonly maxBytes: number

  constructor(maxBytes: number) {
    this.maxBytes = maxBytes
  }

  append(data: Buffer): void {
    const fitting = data.subarray(0, Math.max(0, this.maxBytes - this.bytes))
    if (fitting.length > 0) this.parts.push(Buffer.from(fitting))
    this.bytes += fitting.length
  }

  text(): string {
    return Buffer.concat(this.parts).toString()
  }
}

export async function listProcessesOf(ctx: LiveContext, app: string, id: string) {
  const { machine } = await getStarted(ctx, app, id, 'read')
  return withDeadline(ctx.machines.listProcesses(machine.id), 'the machine')
}

export async function signalMachineOf(
  ctx: LiveContext,
  app: string,
  id: string,
  signal: string | number,
): Promise<void> {
  const { machine } = await getStarted(ctx, app, id, 'write')
  const isDelivered = await withDeadline(ctx.machines.signalMachine(machine.id, signalName(signal)), 'the machine')
  if (!isDelivered) throw preconditionFailed('failed_precondition: the program of the machine is not running')
}
