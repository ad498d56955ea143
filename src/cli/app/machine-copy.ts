// Copies machines, creates the volumes that the copies need, and destroys machines.
import type { Volume } from '../api-types.ts'
import { encodeSegment, request, type Session } from '../client.ts'
import { CommandError } from '../errors.ts'
import { type Progress, pollUntil } from '../progress.ts'
import {
  getMachine,
  type Machine,
  type MachineConfig,
  machinePath,
  machinesPath,
  waitForState,
  waitUntilSettled,
} from './machine-find.ts'

const volumeTimeoutSeconds = 120

export interface MachineTarget {
  session: Session
  app: string
  progress: Progress
}

/** Creates a machine with the configuration of another one and with its own volumes. */
export async function copyMachine(target: MachineTarget, from: Machine, overrides: object = {}): Promise<Machine> {
  const region = (overrides as { region?: string }).region ?? from.region
  const mounts = from.config.mounts?.map(({ volume: _, ...mount }) => mount)
  const config = await resolveVolumes(target, { ...from.config, ...(mounts && { mounts }) }, region, from)
  return createMachine(target, { config, region, ...overrides })
}

export function createMachine({ session, app }: MachineTarget, body: object): Promise<Machine> {
  return request<Machine>(session, 'POST', machinesPath(app), body)
}

const destroyTimeoutSeconds = 330 // above the five minutes a program may take to stop

/** Stops the machine first, so that the edge and its program finish the requests they have. */
export async function destroyMachine(
  { session, app, progress }: MachineTarget,
  id: string,
  nonce: Record<string, string> = {},
): Promise<void> {
  progress.show(`Destroying machine ${id}`)
  const path = machinePath(app, id)
  const { state } = await getMachine(session, app, id)
  if (state === 'destroyed') return
  if (state === 'started') {
    await request(session, 'POST', `${path}/stop`, {}, nonce)
    const { state: settled } = await waitUntilSettled(session, app, { id }, destroyTimeoutSeconds)
    if (settled === 'destroyed') return
  }
  await request(session, 'DELETE', `${path}?force=true`, undefined, nonce)
  await waitForState(session, app, { id }, 'destroyed', destroyTimeoutSeconds)
}

/** Replaces each mount by name with a mount of a free volume of that name, which is created if there is none. */
export async function resolveVolumes(
  target: MachineTarget,
  config: MachineConfig,
  region: string | undefined,
  template?: Machine,
): Promise<MachineConfig> {
  if (!config.mounts?.some(({ volume }) => volume === undefined)) return config
  const path = `/v1/apps/${encodeSegment(target.app)}/volumes`
  const volumes = await request<Volume[]>(target.session, 'GET', path)
  const mounts = []
  for (const mount of config.mounts) {
    const existing = volumes.find((one) => mount.volume === undefined && one.name === mount.name && isFree(one, region))
    const size = mount.size_gb ?? volumes.find((one) => one.attached_machine_id === template?.id)?.size_gb
    const body = { name: mount.name, region, size_gb: size }
    const volume =
      mount.volume ??
      (existing ?? (await waitForVolume(target, await request<Volume>(target.session, 'POST', path, body)))).id
    mounts.push({ ...mount, volume })
  }
  return { ...config, mounts }
}

function isFree(volume: Volume, region: string | undefined): boolean {
  const fits = region === undefined || volume.region === region
  return volume.attached_machine_id === null && volume.state === 'created' && fits
}

async function waitForVolume({ session, app, progress }: MachineTarget, { id }: Volume): Promise<Volume> {
  const deadline = Date.now() + volumeTimeoutSeconds * 1000
  return pollUntil(
    progress,
    () => request<Volume>(session, 'GET', `/v1/apps/${encodeSegment(app)}/volumes/${encodeSegment(id)}`),
    ({ state }) => {
      if (state === 'created') return undefined
      if (Date.now() > deadline)
        throw new CommandError(`volume ${id} is still ${state} after ${volumeTimeoutSeconds} s`)
      return `Volume ${id} is ${state}`
    },
  )
}
