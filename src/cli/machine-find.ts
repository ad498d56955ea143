import { setTimeout as delay } from 'node:timers/promises'
import { request, type Session, segment } from './client.ts'
import { Failure, Refusal } from './failure.ts'

export interface MachineConfig {
  image: string
  env?: Record<string, string>
  init?: { exec?: string[]; entrypoint?: string[]; cmd?: string[] }
  guest?: { cpu_kind?: string; cpus?: number; memory_mb?: number }
  size?: string
  metadata?: Record<string, string>
  services?: object[]
  checks?: Record<string, object>
  mounts?: { volume?: string; name?: string; path: string; size_gb?: number }[]
  auto_destroy?: boolean
  restart?: { policy?: string; max_retries?: number }
  stop_config?: { signal?: string; timeout?: string }
}

export interface Machine {
  id: string
  name: string
  state: string
  region: string
  instance_id: string
  private_ip?: string
  config: MachineConfig
  image_ref?: { registry: string; repository: string; tag: string; digest: string }
  checks?: { name: string; status: string; output: string }[]
  events?: MachineEvent[]
  cordoned?: boolean
  failure?: string | null
  nonce?: string
  created_at: string
  updated_at: string
}

export interface MachineEvent {
  id: string
  type: string
  status: string
  source: string
  timestamp: number
  request?: { exit_event?: { exit_code: number; oom_killed: boolean; requested_stop: boolean } } | null
}

export function machinesPath(app: string): string {
  return `/v1/apps/${segment(app)}/machines`
}

export function machinePath(app: string, id: string): string {
  return `${machinesPath(app)}/${segment(id)}`
}

export function listMachines(session: Session, app: string): Promise<Machine[]> {
  return request<Machine[]>(session, 'GET', machinesPath(app))
}

/** Which part of the app it runs, by what deployments note. */
export function groupOf({ config }: Pick<Machine, 'config'>): string {
  return config.metadata?.fly_process_group ?? 'app'
}

const waitAtOnceSeconds = 20

/** Throws with the reason when it does not get there. */
export async function waitForState(
  session: Session,
  app: string,
  machine: Pick<Machine, 'id' | 'instance_id'>,
  state: string,
  seconds: number,
): Promise<Machine> {
  const deadline = Date.now() + seconds * 1000
  const path = machinePath(app, machine.id)
  for (;;) {
    const query = new URLSearchParams({ state, version: machine.instance_id, timeout: String(waitAtOnceSeconds) })
    try {
      await request(session, 'GET', `${path}/wait?${query}`)
      return await request<Machine>(session, 'GET', path)
    } catch (error) {
      if (!(error instanceof Refusal)) throw error
      const seen = await request<Machine>(session, 'GET', path)
      if (['failed', 'destroyed', 'launch_failed'].includes(seen.state) && seen.state !== state) throw endedAs(seen)
      if (Date.now() > deadline)
        throw new Failure(`machine ${machine.id} is ${seen.state}, not ${state}, after ${seconds} s`)
      if (error.status !== 408) await delay(200)
    }
  }
}

function endedAs(machine: Machine): Failure {
  const why = machine.failure ? `: ${machine.failure}` : ''
  return new Failure(`machine ${machine.id} is ${machine.state}${why}`)
}
