import type { AppRoute } from '../../routing/app.ts'
import type { MachineSelector } from '../../routing/balancer.ts'
import type { Target } from '../../routing/target.ts'
import type { RequestHead } from '../message.ts'
import { splitList } from '../syntax.ts'
import type { Replay, Transform } from './replay.ts'

/** A replay in progress. */
export interface OngoingReplay {
  replay: Replay
  /** The machine that asked for the replay, and its app. */
  source: Target
  app: AppRoute
  startedAt: number
}

const idPattern = /^[0-9A-Za-z-]{1,64}$/

/** Reads the machine or region that the client asks for in Fly-* header fields. */
export function parseSelector({ fields }: RequestHead): MachineSelector | undefined {
  let selector: MachineSelector | undefined
  for (let index = 1; index < fields.length; index += 3) {
    const name = fields[index]!
    if (!name.startsWith('fly-')) continue
    const value = fields[index + 1]!
    if (name === 'fly-force-instance-id') selector = { ...selector, instance: value }
    else if (name === 'fly-prefer-instance-id' && idPattern.test(value))
      selector = { ...selector, preferredInstance: value }
    else if (name === 'fly-force-region') selector = { ...selector, regions: parseList(value), anyRegion: false }
    else if (name === 'fly-prefer-region' && !selector?.regions)
      selector = { ...selector, regions: parseList(value), anyRegion: true }
  }
  return selector
}

function parseList(text: string): string[] {
  return splitList(text.toLowerCase())
}

/** The header line that tells the target of a replay where it came from. */
export function sourceField({ replay, source, startedAt }: OngoingReplay): string {
  const state = replay.state === undefined ? '' : `;state=${replay.state}`
  return `Fly-Replay-Src: instance=${source.machineId};region=${source.region};t=${startedAt * 1000}${state}\r\n`
}

/** The header line that tells the source of a replay why it failed. */
export function failureField({ replay, source, app, startedAt }: OngoingReplay, reason: string): string {
  const parts = [
    `instance=${replay.instance ?? replay.preferInstance ?? ''}`,
    `app=${replay.app ?? app.name}`,
    `region=${replay.regions?.join(',') ?? ''}`,
    `replay_source=${source.machineId}`,
    `reason=${reason}`,
    `elapsed_ms=${Date.now() - startedAt}`,
  ]
  return `Fly-Replay-Failed: ${parts.join(';')}\r\n`
}

export function transformHead(head: RequestHead, { path, deleteHeaders, setHeaders }: Transform): RequestHead {
  const removed = new Set([...deleteHeaders, ...setHeaders.map(({ name }) => name)].map((name) => name.toLowerCase()))
  const fields: string[] = []
  for (let index = 0; index < head.fields.length; index += 3) {
    if (!removed.has(head.fields[index + 1]!)) fields.push(...head.fields.slice(index, index + 3))
  }
  for (const { name, value } of setHeaders) fields.push(name, name.toLowerCase(), value)
  return { ...head, target: path ?? head.target, fields }
}
