// Runs a deployment: updates the existing machines one after another and creates the missing ones.
import type { IpAssignment, IpAssignmentList } from '../api-types.ts'
import { encodeSegment, request, type Session } from '../client.ts'
import { CommandError, UsageError } from '../errors.ts'
import type { Progress } from '../progress.ts'
import { findAddresses, needOwnAddress, offerPorts, ownAddressCommand } from './address.ts'
import type { GroupConfig } from './deploy-config.ts'
import { replaceMachines, requireReplaceable } from './deploy-replace.ts'
import { withImage } from './machine-config.ts'
import { createMachine, destroyMachine, type MachineTarget, resolveVolumes } from './machine-copy.ts'
import {
  describeExit,
  groupMachines,
  groupOf,
  isLeftover,
  listMachines,
  type Machine,
  type MachineConfig,
  releaseGroup,
  waitUntilSettled,
} from './machine-find.ts'
import {
  formatPosition,
  type MachineChange,
  type Rollout,
  readWarnings,
  rollOut,
  underLeases,
  waitUntilUp,
  withLastLogLines,
} from './machine-roll.ts'
import { createRelease, endRelease, type Release, releaseMetadata, type Strategy } from './release.ts'

export interface Deployment {
  app: string
  /** When undefined, existing machines keep their image. */
  image: string | undefined
  region: string | undefined
  /** Undefined without a deployment file; existing machines then keep their configuration. */
  groups: Map<string, GroupConfig> | undefined
  /** The configuration of the first machine, if there is no deployment file. */
  initialConfig: GroupConfig
  env: Record<string, string> | undefined
  strategy: Strategy
  /** A number of machines, or a fraction of all. */
  maxUnavailable: number
  releaseCommand: string[] | undefined
  releaseSeconds: number
  waitSeconds: number
  isHighlyAvailable: boolean
  hasPublicIps: boolean
}

export interface DeployResult {
  app: string
  release: number
  image: string
  created: string[]
  updated: string[]
  destroyed: string[]
  url: string | undefined
  /** Where clients reach ports that do not serve HTTP. */
  endpoints: string[]
  /** What the platform found wrong in machines that are up, such as a port on which nothing listens. */
  warnings: string[]
}

interface DeployContext {
  session: Session
  progress: Progress
  note(text: string): void
}

interface Plan {
  image: string
  changes: MachineChange[]
  missing: { config: MachineConfig; count: number }[]
  obsolete: Machine[]
}

const defaultGroup = 'app'

export async function runDeployment(context: DeployContext, deployment: Deployment): Promise<DeployResult> {
  const { session, progress } = context
  const { app, strategy } = deployment
  const all = await listMachines(session, app)
  const machines = [...groupMachines(all).values()].flat()
  const image = deployment.image ?? machines[0]?.config.image
  if (image === undefined) throw imageIsMissing()
  if (strategy === 'bluegreen') requireReplaceable(machines.map(({ config }) => config))
  const release = await createRelease(session, { app, image, strategy })
  const plan = makePlan(deployment, machines, image, release)
  const rollout: Rollout = { session, app, progress, waitSeconds: deployment.waitSeconds }
  try {
    await removeLeftovers(rollout, machines, all.filter(isLeftover))
    if (deployment.hasPublicIps) await ensureAddress(context, app, plan, machines.length === 0)
    if (deployment.releaseCommand) await runReleaseCommand(rollout, deployment, plan)
    const replaced = await changeMachines(rollout, deployment, plan.changes)
    const created = [...replaced.created, ...(await createMissing(rollout, deployment.region, plan))]
    for (const { id } of plan.obsolete) await destroyMachine(rollout, id)
    await endRelease(session, release, 'complete')
    const { url, endpoints } = await findAddresses(session, app)
    const { updated } = replaced
    return {
      app,
      release: release.version,
      image,
      created,
      updated,
      destroyed: [...replaced.destroyed, ...plan.obsolete.map(({ id }) => id)],
      url,
      endpoints,
      warnings: await warnAbout(context, rollout, [...created, ...updated]),
    }
  } catch (error) {
    await endRelease(session, release, 'failed').catch(() => undefined)
    throw error
  }
}

export function imageIsMissing(): UsageError {
  return new UsageError(
    'name the image with --image, or in the file as image or build.image; berth does not build images',
  )
}

/** The leases are refused while the deployment that made them is still running. */
async function removeLeftovers(rollout: Rollout, machines: Machine[], leftovers: Machine[]): Promise<void> {
  if (leftovers.length === 0) return
  const ids = machines.map(({ id }) => id)
  await underLeases(rollout, ids, async () => {
    for (const { id } of leftovers) await destroyMachine(rollout, id)
  })
}

type Changed = Pick<DeployResult, 'created' | 'updated' | 'destroyed'>

async function changeMachines(rollout: Rollout, deployment: Deployment, changes: MachineChange[]): Promise<Changed> {
  if (deployment.strategy === 'bluegreen') {
    const created = await replaceMachines(rollout, changes)
    return { created, updated: [], destroyed: changes.map(({ machine }) => machine.id) }
  }
  const canaries = deployment.strategy === 'canary' ? pickCanaries(changes) : []
  await rollOut(rollout, canaries)
  const rest = changes.filter((change) => !canaries.includes(change))
  await rollOut(rollout, rest, batchSizeFor(deployment, rest.length))
  return { created: [], updated: changes.map(({ machine }) => machine.id), destroyed: [] }
}

/** Picks one machine of each process group, a started one if there is one, because only that shows whether it works. */
export function pickCanaries(changes: MachineChange[]): MachineChange[] {
  const groups = Map.groupBy(changes, ({ machine }) => groupOf(machine))
  return [...groups.values()].map((each) => each.find(({ machine }) => machine.state === 'started') ?? each[0]!)
}

export function makePlan(deployment: Deployment, machines: Machine[], image: string, release: Release): Plan {
  const { groups, isHighlyAvailable } = deployment
  const known = new Map<string, GroupConfig | undefined>(
    groups ?? machines.map((machine) => [groupOf(machine)!, undefined]),
  )
  if (known.size === 0) known.set(defaultGroup, deployment.initialConfig)
  const metadataOf = (group: string) => releaseMetadata(group, release)
  const changes = machines
    .filter((machine) => known.has(groupOf(machine)!))
    .map((machine): MachineChange => {
      const group = groupOf(machine)!
      const metadata = { ...machine.config.metadata, ...metadataOf(group) }
      const given = known.get(group)
      const config = given ? applyFileConfig(machine.config, given) : addVariables(machine.config, deployment.env)
      return { machine, config: withImage({ ...config, metadata }, image) }
    })
  const missing = [...known]
    .filter(([group]) => !changes.some(({ machine }) => groupOf(machine) === group))
    .map(([group, given]) => ({
      config: { ...given, image, metadata: metadataOf(group) },
      count: given?.services && !given.mounts && isHighlyAvailable ? 2 : 1,
    }))
  const obsolete = machines.filter((machine) => !known.has(groupOf(machine)!))
  return { image, changes, missing, obsolete }
}

/** A machine keeps its volume, and its size unless the file sets one. */
function applyFileConfig(before: MachineConfig, given: GroupConfig): GroupConfig {
  const volume = before.mounts?.[0]?.volume
  const mounts = given.mounts?.map((mount) => ({ ...mount, ...(volume !== undefined && { volume }) }))
  const size = given.guest || given.size || !before.guest ? {} : { guest: before.guest }
  return { ...size, ...given, ...(mounts && { mounts }) }
}

function addVariables(before: MachineConfig, env: Record<string, string> | undefined): MachineConfig {
  return env ? { ...before, env: { ...before.env, ...env } } : before
}

export function batchSizeFor(
  { strategy, maxUnavailable: given }: Pick<Deployment, 'strategy' | 'maxUnavailable'>,
  count: number,
): number {
  if (strategy === 'immediate') return Math.max(1, count)
  return Math.max(1, given < 1 ? Math.floor(given * count) : given)
}

/** Allocates an address for a new app: its own if the shared one could not serve all of its ports. */
async function ensureAddress(
  { session, note }: DeployContext,
  app: string,
  plan: Plan,
  isFirst: boolean,
): Promise<void> {
  const services = [...plan.missing, ...plan.changes].flatMap(({ config }) => config.services ?? [])
  const needsOwn = needOwnAddress(services)
  if (!(isFirst ? offerPorts(services) : needsOwn)) return
  const path = `/v1/apps/${encodeSegment(app)}/ip_assignments`
  const { ips } = await request<IpAssignmentList>(session, 'GET', path)
  if (isFirst && ips.length === 0) {
    const { ip } = await request<IpAssignment>(session, 'POST', path, { type: needsOwn ? 'v4' : 'shared_v4' })
    note(`App ${app} has the ${needsOwn ? '' : 'shared '}address ${ip}.`)
  } else if (needsOwn && ips.every(({ shared }) => shared)) {
    const reason = 'UDP and plain TCP ports need an own address'
    note(`warning: ${reason}, which app ${app} does not have; run "${ownAddressCommand(app)}"`)
  }
}

/** Machines of one group have the same configuration, so what they have in common is shown once. */
async function warnAbout({ note }: DeployContext, rollout: Rollout, ids: string[]): Promise<string[]> {
  // The deployment has succeeded by now, whatever becomes of its machines.
  const read = (id: string) => readWarnings(rollout, id).catch(() => [])
  const found = new Set((await Promise.all(ids.map(read))).flat())
  for (const text of found) note(`warning: ${text}`)
  return [...found]
}

async function createMissing(rollout: Rollout, region: string | undefined, plan: Plan): Promise<string[]> {
  const target: MachineTarget = rollout
  const wanted = plan.missing.flatMap(({ config, count }) => Array.from({ length: count }, () => config))
  const created: string[] = []
  for (const [index, config] of wanted.entries()) {
    const body = { config: await resolveVolumes(target, config, region), region }
    const made = await createMachine(target, body)
    created.push(made.id)
    rollout.progress.show(`Starting machine ${made.id}${formatPosition(index + 1, wanted.length)}`)
    await withLastLogLines(rollout, made.id, () => waitUntilUp(rollout, made.id))
  }
  return created
}

/** Runs the release command in a temporary machine before any other machine is changed. */
async function runReleaseCommand(rollout: Rollout, deployment: Deployment, plan: Plan): Promise<void> {
  const { session, app, progress } = rollout
  const template = plan.changes[0]?.config ?? plan.missing[0]?.config
  const { services: _, checks: __, mounts: ___, size, guest, ...config } = template!
  const made = await createMachine(rollout, {
    region: deployment.region,
    config: {
      ...config,
      ...(size !== undefined ? { size } : guest && { guest }),
      env: { ...config.env, RELEASE_COMMAND: '1' },
      init: { ...config.init, cmd: deployment.releaseCommand },
      metadata: { ...config.metadata, fly_process_group: releaseGroup },
      restart: { policy: 'no' },
      auto_destroy: true,
    },
  })
  progress.show(`Running the release command in machine ${made.id}`)
  try {
    await withLastLogLines(rollout, made.id, async () => {
      const ended = await waitUntilSettled(session, app, made, deployment.releaseSeconds, ['destroyed', 'failed'])
      const exit = ended.events?.find(({ request }) => request?.exit_event)?.request?.exit_event
      if (ended.failure) throw new CommandError(`the release command could not be run: ${ended.failure}`)
      if (exit?.exit_code !== 0) {
        throw new CommandError(
          `the release command ${exit ? describeExit(exit) : 'did not run'}; nothing else was changed`,
        )
      }
    })
  } catch (error) {
    await destroyMachine(rollout, made.id).catch(() => undefined) // the original error is reported
    throw error
  }
}
