// Answers about machines that are out in the world: what runs in them, what they said, commands in them.
import type { MachineEntrance } from '../../drivers/machine/driver.ts'
import { limitsOf, machineEntrance } from '../../drivers/machine/spec.ts'
import { requireWriter } from '../../model/account/caller.ts'
import type { MachineDetails } from '../../model/app/machine.ts'
import { BerthError, badRequest, preconditionFailed } from '../../model/errors.ts'
import { signalName } from '../../model/signal.ts'
import { getVisibleMachine, readSurroundings, type VisibleMachine } from '../../store/app/machine.ts'
import { type LiveContext, withDeadline } from '../context.ts'
import { startWithPipes } from '../process.ts'

export interface CommandWish {
  argv: [string, ...string[]]
  stdin: string
  timeoutSeconds: number
}

export interface CommandResult {
  exitCode: number
  exitSignal: number
  stdout: string
  stderr: string
}

/** Of each stream; what is beyond is left out. */
const mostOutputBytes = 1024 * 1024

async function getRunning(
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
  wish: CommandWish,
): Promise<CommandResult> {
  const { machine } = await getRunning(ctx, app, id, 'write')
  if (ctx.machines.inspectMachine(machine.id, machine.instanceId).is !== 'up') {
    throw preconditionFailed('failed_precondition: the program of the machine has ended; this works once it runs again')
  }
  const spec = await entranceOf(ctx, machine)
  const child = ctx.machines.spawnInMachine(spec, { argv: wish.argv })
  const output = [new Bounded(mostOutputBytes), new Bounded(mostOutputBytes)] as const
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => {
      child.kill('SIGKILL')
      reject(new BerthError('timeout', `deadline_exceeded: the command did not end within ${wish.timeoutSeconds} s`))
    }, wish.timeoutSeconds * 1000)
    const running = startWithPipes(child, {
      onOutput: (stream, data) => output[stream === 1 ? 0 : 1].take(data),
      onDrain: () => undefined,
      onEnd: (code) => {
        clearTimeout(late)
        const [stdout, stderr] = output.map((part) => part.text())
        resolve({
          exitCode: code,
          exitSignal: code > 128 && code <= 192 ? code - 128 : 0,
          stdout: stdout!,
          stderr: stderr!,
        })
      },
    })
    if (wish.stdin) running.write(Buffer.from(wish.stdin))
    running.endInput()
  })
}

export async function entranceOf(
  ctx: Pick<LiveContext, 'db' | 'images' | 'encryptionKey' | 'settings' | 'hasPrivateNetworks'>,
  machine: MachineDetails,
): Promise<MachineEntrance> {
  const image = machine.image && (await ctx.images.findImage(machine.image.digest))
  if (!image) throw preconditionFailed('failed_precondition: the image of the machine is not here')
  const around = await readSurroundings(ctx.db, machine.id, ctx.encryptionKey)
  const { homeNumber } = ctx.settings
  return machineEntrance(machine, image, { ...around, homeNumber, hasPrivateNetworks: await ctx.hasPrivateNetworks() })
}

class Bounded {
  private readonly parts: Buffer[] = []
  private bytes = 0
  private readonly most: number

  constructor(most: number) {
    this.most = most
  }

  take(data: Buffer): void {
    const fits = data.subarray(0, Math.max(0, this.most - this.bytes))
    if (fits.length > 0) this.parts.push(Buffer.from(fits))
    this.bytes += fits.length
  }

  text(): string {
    return Buffer.concat(this.parts).toString()
  }
}

export async function listProcessesOf(ctx: LiveContext, app: string, id: string) {
  const { machine } = await getRunning(ctx, app, id, 'read')
  return withDeadline(ctx.machines.listProcesses(machine.id), 'the machine')
}

export async function signalMachineOf(
  ctx: LiveContext,
  app: string,
  id: string,
  signal: string | number,
): Promise<void> {
  const { machine } = await getRunning(ctx, app, id, 'write')
  const heard = await withDeadline(ctx.machines.signalMachine(machine.id, signalName(signal)), 'the machine')
  if (!heard) throw preconditionFailed('failed_precondition: nothing runs in the machine at the moment')
}

export interface Memory {
  limitMb: number
  availableMb: number
}

const megabyte = 1024 ** 2

/** What its processes hold counts as used. */
export async function readMemory(ctx: LiveContext, app: string, id: string): Promise<Memory> {
  const { machine } = await getVisibleMachine(ctx.db, ctx.tokenHash, app, id)
  return memoryOf(ctx, machine)
}

async function memoryOf(ctx: LiveContext, machine: MachineDetails): Promise<Memory> {
  const { memoryMb } = limitsOf(machine.config)
  if (machine.state !== 'started') return { limitMb: memoryMb, availableMb: memoryMb }
  const counted = ctx.machines.readMemory(machine.id) ?? {
    limitBytes: memoryMb * megabyte,
    usedBytes: sum(await withDeadline(ctx.machines.listProcesses(machine.id), 'the machine')),
  }
  const limitMb = Math.round(counted.limitBytes / megabyte)
  return { limitMb, availableMb: Math.max(0, limitMb - Math.ceil(counted.usedBytes / megabyte)) }
}

function sum(processes: { rss: number }[]): number {
  return processes.reduce((bytes, { rss }) => bytes + rss, 0)
}

/** Until it starts the next time; what it has then is part of its version. */
export async function setMemory(ctx: LiveContext, app: string, id: string, limitMb: number): Promise<Memory> {
  const { machine } = await getRunning(ctx, app, id, 'write')
  const mostMb = machine.config.guest?.max_memory_mb ?? limitsOf(machine.config).memoryMb
  if (limitMb > mostMb) throw badRequest(`limit_mb must be at most ${mostMb}, as config.guest of the machine has it`)
  if (ctx.machines.readMemory(machine.id) === undefined) throw preconditionFailed(`failed_precondition: ${noGroups}`)
  const fits = await withDeadline(ctx.machines.setMemoryLimit(machine.id, limitMb * megabyte), 'the machine')
  if (!fits) throw preconditionFailed(`failed_precondition: the machine uses more than ${limitMb} MB`)
  return memoryOf(ctx, machine)
}

const noGroups = 'there are no control groups on this host, so that the memory of machines is not limited'

/** Answers in megabytes how much that was. */
export async function reclaimMemoryOf(ctx: LiveContext, app: string, id: string, amountMb?: number): Promise<number> {
  const { machine } = await getRunning(ctx, app, id, 'write')
  const bytes = (amountMb ?? limitsOf(machine.config).memoryMb) * megabyte
  const freed = await withDeadline(ctx.machines.reclaimMemory(machine.id, bytes), 'the machine')
  return Math.floor(freed / megabyte)
}
