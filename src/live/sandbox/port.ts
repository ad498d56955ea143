import { uptime } from 'node:os'
import type { ListeningPort, SocketHolder } from '../../drivers/box/driver.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import type { LiveContext } from '../context.ts'

export interface PortChange {
  type: 'port_opened' | 'port_closed'
  port: number
  address: string
  pid: number
}

/** The first event is the list of open ports. */
export type PortEvent = { type: 'port_list'; ports: PortChange[] } | PortChange

const pollMs = 250

interface Watcher {
  /** Called once, before the first change. */
  list(ports: OpenPorts): void
  change(change: PortChange): void
}

/** By port number. */
type OpenPorts = ReadonlyMap<number, ListeningPort>

interface Poller {
  watchers: Set<Watcher>
  /** Undefined before the first poll. */
  known: OpenPorts | undefined
}

const pollers = new Map<string, Poller>()

/** Reports the open ports and then every change. Returns the function that ends the watch. */
export function watchPorts(ctx: LiveContext, sandbox: Sandbox, onEvent: (event: PortEvent) => void): () => void {
  return watch(ctx, sandbox.id, { list: (ports) => onEvent(listOf(ports)), change: onEvent })
}

/** The time in clock ticks since boot, which the start times of processes are in. */
export function ticksNow(): number {
  return Math.floor(uptime() * 100)
}

/**
 * Reports every change, and the open ports of processes that started at `start` or later. A short command may open its
 * ports before the first poll has ended. Returns the function that ends the watch.
 */
export function watchPortChanges(
  ctx: LiveContext,
  sandbox: Sandbox,
  start: number | undefined,
  onChange: (change: PortChange) => void,
): () => void {
  const list = (ports: OpenPorts) => {
    if (start !== undefined) for (const change of openedSince(start, ports)) onChange(change)
  }
  return watch(ctx, sandbox.id, { list, change: onChange })
}

/** All watchers of a sandbox share one poller, which runs while there are any. It does not start the sandbox. */
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
  const poll = async () => {
    if (poller.watchers.size === 0) return
    try {
      const box = await ctx.boxes.inspectBox(id)
      update(poller, box.is === 'up' ? await ctx.boxes.readPorts(box.pid, holdersOf(poller)) : [])
    } catch {
      // The next poll tries again. An error does not mean that ports were closed.
    }
    setTimeout(poll, pollMs).unref()
  }
  setImmediate(poll)
  return poller
}

function holdersOf({ known }: Poller): Map<number, SocketHolder> {
  const ports = [...(known?.values() ?? [])]
  return new Map(ports.flatMap((port) => port.sockets.map((socket) => [socket, port])))
}

function update(poller: Poller, ports: ListeningPort[]): void {
  const before = poller.known
  const now = new Map(ports.map((port) => [port.port, port]))
  poller.known = now
  const changes = before && changesOf(before, now)
  for (const watcher of [...poller.watchers]) {
    if (changes) for (const change of changes) watcher.change(change)
    else watcher.list(now)
  }
}

function openedSince(start: number, now: OpenPorts): PortChange[] {
  return [...now.values()].filter((port) => port.since >= start).map((port) => changeOf('port_opened', port))
}

/** A port whose sockets have all been replaced was closed and opened again. */
export function changesOf(before: OpenPorts, now: OpenPorts): PortChange[] {
  const isSame = (one: ListeningPort, other: ListeningPort | undefined) =>
    other?.sockets.some((socket) => one.sockets.includes(socket)) === true
  const closed = [...before.values()].filter((port) => !isSame(port, now.get(port.port)))
  const opened = [...now.values()].filter((port) => !isSame(port, before.get(port.port)))
  return [
    ...closed.map((port) => changeOf('port_closed', port)),
    ...opened.map((port) => changeOf('port_opened', port)),
  ]
}

function listOf(ports: OpenPorts): PortEvent {
  const inOrder = [...ports.values()].sort((a, b) => a.port - b.port)
  return { type: 'port_list', ports: inOrder.map((port) => changeOf('port_opened', port)) }
}

function changeOf(type: PortChange['type'], { port, address, pid }: ListeningPort): PortChange {
  return { type, port, address, pid }
}
