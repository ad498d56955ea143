import { request as httpRequest, type IncomingMessage } from 'node:http'
import { request as httpsRequest } from 'node:https'
import { connect } from 'node:net'
import { mainContainer } from '../../model/app/container/config.ts'
import type { CheckResult, Machine } from '../../model/app/machine.ts'
import type { NamedCheck } from '../../model/app/machine-check-list.ts'
import { containerMachine, type ExecTarget, execTarget } from '../../model/app/machine-spec.ts'
import { getSlot } from '../../model/app/machine-spec-context.ts'
import { goDurationMs } from '../../model/duration.ts'
import { boxAddress, boxHostAddress } from '../../model/network.ts'
import { readMachineEnvironment } from '../../store/app/machine.ts'
import type { World } from '../step.ts'

export type CheckOutcome = Pick<CheckResult, 'status' | 'output'>

const defaultTimeoutMs = 5_000
const minTimeoutMs = 100
const maxTimeoutMs = 300_000
const maxOutputLength = 1_000

/**
 * Runs a check once. Failures are outcomes: it never throws. The address follows from the slot of the machine and nothing
 * in the check can change it. Redirects are not followed.
 */
export async function runCheck(world: World, machine: Machine, named: NamedCheck): Promise<CheckOutcome> {
  const wantedMs = goDurationMs(named.check.timeout) ?? defaultTimeoutMs
  const timeoutMs = Math.min(Math.max(wantedMs, minTimeoutMs), maxTimeoutMs)
  try {
    const process = world.machines.inspectMachine(machine.id, machine.instanceId)
    if (process.is !== 'up') return { status: 'critical', output: 'the program of the machine is not running' }
    if (named.check.type === 'exec') return await runCommand(world, machine, named, timeoutMs)
    const { network } = await world.machines.isolation()
    const target = network === 'host' ? { host: '127.0.0.1' } : boxTarget(world.homeNumber, getSlot(machine))
    return await (named.check.type === 'http' ? requestHttp : connectTcp)(target, named, timeoutMs)
  } catch (error) {
    return { status: 'critical', output: (error as Error).message.slice(0, maxOutputLength) }
  }
}

interface CheckTarget {
  host: string
  localAddress?: string
}

/** The own address exists only while the box runs, so that a check of a program that just ended does not leave this host. */
function boxTarget(homeNumber: number, slot: number): CheckTarget {
  return { host: boxAddress(homeNumber, slot), localAddress: boxHostAddress(homeNumber, slot) }
}

function connectTcp(target: CheckTarget, { port }: NamedCheck, timeoutMs: number): Promise<CheckOutcome> {
  return new Promise((resolve, reject) => {
    const socket = connect({ ...target, port: port!, timeout: timeoutMs })
    socket.once('connect', () => {
      socket.destroy()
      resolve({ status: 'passing', output: 'connected' })
    })
    socket.once('timeout', () => socket.destroy(new Error(`no connection within ${timeoutMs} ms`)))
    socket.once('error', reject)
  })
}

function requestHttp(target: CheckTarget, { check, port }: NamedCheck, timeoutMs: number): Promise<CheckOutcome> {
  const isTls = check.protocol === 'https'
  // Node takes the values of some headers, such as Host, only as text.
  const headerValue = (values: string[]) => (values.length === 1 ? values[0]! : values)
  const headers = Object.fromEntries((check.headers ?? []).map(({ name, values }) => [name, headerValue(values)]))
  return new Promise((resolve, reject) => {
    const request = (isTls ? httpsRequest : httpRequest)({
      ...target,
      port,
      path: check.path ?? '/',
      method: (check.method ?? 'GET').toUpperCase(),
      headers,
      agent: false,
      signal: AbortSignal.timeout(timeoutMs),
      ...(isTls && {
        rejectUnauthorized: !check.tls_skip_verify,
        ...(check.tls_server_name && { servername: check.tls_server_name }),
      }),
    })
    request.once('error', (error) => {
      const isTimeout = error.name === 'TimeoutError' || error.name === 'AbortError'
      reject(isTimeout ? new Error(`no answer within ${timeoutMs} ms`) : error)
    })
    request.once('response', (response) => {
      readOutcome(response, resolve, reject)
    })
    // Node reports nothing else when a server switches protocols.
    request.once('close', () => reject(new Error('the connection was closed without an answer')))
    request.end()
  })
}

function readOutcome(
  response: IncomingMessage,
  resolve: (outcome: CheckOutcome) => void,
  reject: (error: unknown) => void,
): void {
  let body = ''
  const status = response.statusCode ?? 0
  const finish = () => {
    response.destroy()
    const isSuccess = status >= 200 && status < 300
    resolve({
      status: isSuccess ? 'passing' : 'critical',
      output: `HTTP ${status}${body && `: ${body}`}`.slice(0, maxOutputLength),
    })
  }
  response.setEncoding('utf8')
  response.on('data', (text: string) => {
    body += text
    if (body.length > maxOutputLength) finish()
  })
  response.once('end', finish)
  response.once('error', reject)
}

async function runCommand(
  world: World,
  machine: Machine,
  { check, container }: NamedCheck,
  timeoutMs: number,
): Promise<CheckOutcome> {
  const child = world.machines.spawnInMachine(await execTargetOf(machine, container?.name, world), {
    argv: check.command as [string, ...string[]],
  })
  return new Promise((resolve, reject) => {
    let output = ''
    const timeout = setTimeout(() => {
      child.kill('SIGKILL')
      reject(new Error(`the command did not exit within ${timeoutMs} ms`))
    }, timeoutMs)
    const collect = (data: Buffer) => {
      if (output.length < maxOutputLength) output = (output + data.toString()).slice(0, maxOutputLength)
    }
    child.stdout?.on('data', collect)
    child.stderr?.on('data', collect)
    child.stdin?.on('error', () => undefined) // the command exited without reading
    child.stdin?.end()
    child.once('error', reject)
    child.once('exit', (code) => {
      clearTimeout(timeout)
      resolve({ status: code === 0 ? 'passing' : 'critical', output: output || `exit code ${code}` })
    })
  })
}

/** Caches what exec checks need: image and secrets do not change within one version of a machine. */
const execTargets = new WeakMap<Machine, Map<string | undefined, ExecTarget>>()

async function execTargetOf(machine: Machine, containerName: string | undefined, world: World): Promise<ExecTarget> {
  const cached = execTargets.get(machine) ?? new Map<string | undefined, ExecTarget>()
  execTargets.set(machine, cached)
  const known = cached.get(containerName)
  if (known) return known
  const container =
    machine.config.containers?.find(({ name }) => name === containerName) ?? mainContainer(machine.config)
  const program = container ? containerMachine(machine, container) : machine
  const image = program.image && (await world.images.findImage(program.image.digest))
  if (!image) throw new Error('its image is not on this host')
  const context = await readMachineEnvironment(world.db, machine.id, world.encryptionKey)
  const hasPrivateNetworks = await world.hasPrivateNetworks()
  const { homeNumber } = world
  const target = execTarget(program, image, { ...context, homeNumber, hasPrivateNetworks }, container)
  cached.set(containerName, target)
  return target
}
