// What requests are given on their way through a replay, and what they ask for themselves.

import type { RequestHead } from '../http/message.ts'
import type { AppRoute, Target } from './app.ts'
import type { Wish } from './balance.ts'
import type { Replay, Transform } from './replay.ts'

/** A replay that is under way: who asked for it, and what happens when it fails. */
export interface Replaying {
  replay: Replay
  source: Target
  app: AppRoute
  began: number
}

const idPattern = /^[0-9A-Za-z-]{1,64}$/

/** What the client itself asks for. */
export function wishOf(head: RequestHead): Wish | undefined {
  const { fields } = head
  let wish: Wish | undefined
  for (let index = 1; index < fields.length; index += 3) {
    const name = fields[index]!
    if (!name.startsWith('fly-')) continue
    const value = fields[index + 1]!
    if (name === 'fly-force-instance-id') wish = { ...wish, instance: value }
    else if (name === 'fly-prefer-instance-id' && idPattern.test(value)) wish = { ...wish, prefersInstance: value }
    else if (name === 'fly-force-region') wish = { ...wish, regions: listOf(value), anyRegion: false }
    else if (name === 'fly-prefer-region' && !wish?.regions) wish = { ...wish, regions: listOf(value), anyRegion: true }
  }
  return wish
}

function listOf(text: string): string[] {
  return text
    .toLowerCase()
    .split(',')
    .map((each) => each.trim())
}

export function sourceText({ replay, source, began }: Replaying): string {
  const state = replay.state === undefined ? '' : `;state=${replay.state}`
  return `Fly-Replay-Src: instance=${source.machineId};region=${source.region};t=${began * 1000}${state}\r\n`
}

export function failedText({ replay, source, app, began }: Replaying, reason: string): string {
  const parts = [
    `instance=${replay.instance ?? replay.preferInstance ?? ''}`,
    `app=${replay.app ?? app.name}`,
    `region=${replay.regions?.join(',') ?? ''}`,
    `replay_source=${source.machineId}`,
    `reason=${reason}`,
    `elapsed_ms=${Date.now() - began}`,
  ]
  return `Fly-Replay-Failed: ${parts.join(';')}\r\n`
}

export function transformed(head: RequestHead, { path, deleteHeaders, setHeaders }: Transform): RequestHead {
  const gone = new Set([...deleteHeaders, ...setHeaders.map(({ name }) => name)].map((name) => name.toLowerCase()))
  const fields: string[] = []
  for (let index = 0; index < head.fields.length; index += 3) {
    if (!gone.has(head.fields[index + 1]!)) fields.push(...head.fields.slice(index, index + 3))
  }
  for (const { name, value } of setHeaders) fields.push(name, name.toLowerCase(), value)
  return { ...head, target: path ?? head.target, fields }
}
