// Further machines like one that is there, and the volumes that they need.
import type { Volume } from '../api-types.ts'
import { request, type Session, segment } from '../client.ts'
import { Failure } from '../failure.ts'
import { type Progress, watch } from '../progress.ts'
import { type Machine, type MachineConfig, machinesPath } from './machine-find.ts'

const volumeSeconds = 120

export interface Place {
  session: Session
  app: string
  progress: Progress
}

/** It gets what the other was given, and volumes of its own. */
export async function copyMachine(place: Place, from: Machine, more: object = {}): Promise<Machine> {
  const region = (more as { region?: string }).region ?? from.region
  const mounts = from.config.mounts?.map(({ volume: _, ...mount }) => mount)
  const config = await withVolumes(place, { ...from.config, ...(mounts && { mounts }) }, region, from)
  return createMachine(place, { config, region, ...more })
}

export function createMachine({ session, app }: Place, body: object): Promise<Machine> {
  return request<Machine>(session, 'POST', machinesPath(app), body)
}

/** Each mount by name finds a volume that no machine has, or gets a new one. */
export async function withVolumes(
  place: Place,
  config: MachineConfig,
  region: string | undefined,
  like?: Machine,
): Promise<MachineConfig> {
  if (!config.mounts?.some(({ volume }) => volume === undefined)) return config
  const path = `/v1/apps/${segment(place.app)}/volumes`
  const volumes = await request<Volume[]>(place.session, 'GET', path)
  const mounts = []
  for (const mount of config.mounts) {
    const there = volumes.find((one) => mount.volume === undefined && one.name === mount.name && isFree(one, region))
    const size = mount.size_gb ?? volumes.find((one) => one.attached_machine_id === like?.id)?.size_gb
    const body = { name: mount.name, region, size_gb: size }
    const volume =
      mount.volume ??
      (there ?? (await untilCreated(place, await request<Volume>(place.session, 'POST', path, body)))).id
    mounts.push({ ...mount, volume })
  }
  return { ...config, mounts }
}

function isFree(volume: Volume, region: string | undefined): boolean {
  const fits = region === undefined || volume.region === region
  return volume.attached_machine_id === null && volume.state === 'created' && fits
}

async function untilCreated({ session, app, progress }: Place, { id }: Volume): Promise<Volume> {
  const deadline = Date.now() + volumeSeconds * 1000
  return watch(
    progress,
    () => request<Volume>(session, 'GET', `/v1/apps/${segment(app)}/volumes/${segment(id)}`),
    ({ state }) => {
      if (state === 'created') return undefined
      if (Date.now() > deadline) throw new Failure(`volume ${id} is still ${state} after ${volumeSeconds} s`)
      return `Volume ${id} is ${state}`
    },
  )
}
