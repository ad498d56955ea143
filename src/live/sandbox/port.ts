import { uptime } from 'node:os'
import { type Holder, type ListeningPort, readPorts } from '../../drivers/box/port.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import type { LiveContext } from '../context.ts'

export interface PortChange {
  type: 'port_opened' | 'port_closed'
  port: number
  address: string
  pid: number
}

/** The list comes first and once. */
export type PortEvent = { type: 'port_list'; ports: PortChange[] } | PortChange

const pollMilliseconds = 250

interface Watcher {
  /** Called first and once. */
  list(ports: Known): void
  change(change: PortChange): void
}

type Known = ReadonlyMap<number, ListeningPort>

interface Poller {
  watchers: Set<Watcher>
  /** By port; undefined before the first look. */
  known: Known | undefined
}

const pollers = new Map<string, Poller>()

/** Tells what listens inside, and every change of it, until the answered function is called. */
export function watchPorts(ctx: LiveContext, sandbox: Sandbox, onEvent: (event: PortEvent) => void): () => void {
  return watch(ctx, sandbox.id, { list: (ports) => onEvent(listOf(ports)), change: onEvent })
}

/** In ticks since boot, as the kernel counts for processes. To ask what listens takes as long as a short command. */
export function ticksNow(): number {
  return Math.floor(uptime() * 100)
}

/** Tells every change from now on, and what processes that began at `start` or later hold, until the answered function is called. */
export function watchPortChanges(
  ctx: LiveContext,
  sandbox: Sandbox,
  start: number | undefined,
  onChange: (change: PortChange) => void,
): () => void {
  const list = (ports: Known) => {
    if (start !== undefined) for (const change of openedSince(start, ports)) onChange(change)
  }
  return watch(ctx, sandbox.id, { list, change: onChange })
}

/** However many watch, the kernel is asked once, and not at all while nobody does. Does not start the sandbox. */
function watch(ctx: LiveContext, id: string, watcher: Watcher): () => void {
  const poller = pollers.get(id) ?? startPoller(ctx, id)
  poller.watchers.add(watcher)
  const { known } = poller
  if (known) queueMicrotask(() => poller.watchers.has(watcher) && watcher.list(known))
  return () => {
    poller.watchers.delete(watcher)
    if (poller.watchers.size === 0 && pollers.get(id) === poller) pollers.delete(id)
  }
}

function startPoller(ctx: LiveContext, id: string): Poller {
  const poller: Poller = { watchers: new Set(), known: undefined }
  pollers.set(id, poller)
  const look = async () => {
    if (poller.watchers.size === 0) return
    try {
      note(poller, await readPorts(ctx.boxes, id, holdersOf(poller)))
    } catch {
      // It is looked at again in a moment; what cannot be read now is not closed.
    }
    setTimeout(look, pollMilliseconds).unref()
  }
  setImmediate(look)
  return poller
}

function holdersOf({ known }: Poller): Map<number, Holder> {
  const ports = [...(known?.values() ?? [])]
  return new Map(ports.flatMap((port) => port.sockets.map((socket) => [socket, port])))
}

function note(poller: Poller, ports: ListeningPort[]): void {
  const before = poller.known
  const now = new Map(ports.map((port) => [port.port, port]))
  poller.known = now
  const changes = before && changesOf(before, now)
  for (const watcher of [...poller.watchers]) {
    if (changes) for (const change of changes) watcher.change(change)
    else watcher.list(now)
  }
}

function openedSince(start: number, now: Known): PortChange[] {
  return [...now.values()].filter((port) => port.since >= start).map((port) => changeOf('port_opened', port))
}

/** A port that is the same and whose sockets are all others was closed and opened in between. */
export function changesOf(before: Known, now: Known): PortChange[] {
  const isSame = (one: ListeningPort, other: ListeningPort | undefined) =>
    other?.sockets.some((socket) => one.sockets.includes(socket)) === true
  const closed = [...before.values()].filter((port) => !isSame(port, now.get(port.port)))
  const opened = [...now.values()].filter((port) => !isSame(port, before.get(port.port)))
  return [
    ...closed.map((port) => changeOf('port_closed', port)),
    ...opened.map((port) => changeOf('port_opened', port)),
  ]
}

function listOf(ports: Known): PortEvent {
  const inOrder = [...ports.values()].sort((a, b) => a.port - b.port)
  return { type: 'port_list', ports: inOrder.map((port) => changeOf('port_opened', port)) }
}

function changeOf(type: PortChange['type'], { port, address, pid }: ListeningPort): PortChange {
  return { type, port, address, pid }
}
