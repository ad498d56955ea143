import { type ListeningPort, readPorts } from '../drivers/box-port.ts'
import type { Sandbox } from '../model/sandbox.ts'
import type { LiveContext } from './context.ts'

export interface PortChange {
  type: 'port_opened' | 'port_closed'
  port: number
  address: string
  pid: number
}

/** The list comes first and once. */
export type PortEvent = { type: 'port_list'; ports: PortChange[] } | PortChange

const pollMilliseconds = 250

interface Poller {
  listeners: Set<(event: PortEvent) => void>
  /** By port; undefined before the first look. */
  known: Map<number, ListeningPort> | undefined
}

const pollers = new Map<string, Poller>()

/**
 * Tells what listens inside, and every change of it, until the answered function is called. However many watch, the
 * kernel is asked once, and not at all while nobody does. Does not start the sandbox.
 */
export function watchPorts(ctx: LiveContext, sandbox: Sandbox, onEvent: (event: PortEvent) => void): () => void {
  const poller = pollers.get(sandbox.id) ?? startPoller(ctx, sandbox.id)
  let isWatching = true
  const listener = (event: PortEvent) => {
    if (isWatching) onEvent(event)
  }
  poller.listeners.add(listener)
  const { known } = poller
  if (known) queueMicrotask(() => listener(listOf(known)))
  return () => {
    isWatching = false
    poller.listeners.delete(listener)
    if (poller.listeners.size === 0 && pollers.get(sandbox.id) === poller) pollers.delete(sandbox.id)
  }
}

function startPoller(ctx: LiveContext, id: string): Poller {
  const poller: Poller = { listeners: new Set(), known: undefined }
  pollers.set(id, poller)
  const look = async () => {
    if (poller.listeners.size === 0) return
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

function holdersOf({ known }: Poller): Map<number, number> {
  const ports = [...(known?.values() ?? [])]
  return new Map(ports.flatMap(({ sockets, pid }) => sockets.map((socket) => [socket, pid])))
}

function note(poller: Poller, ports: ListeningPort[]): void {
  const before = poller.known
  const now = new Map(ports.map((port) => [port.port, port]))
  poller.known = now
  const events: PortEvent[] = before ? changesOf(before, now) : [listOf(now)]
  for (const event of events) for (const listener of [...poller.listeners]) listener(event)
}

/** A port that is the same and whose sockets are all others was closed and opened in between. */
export function changesOf(
  before: ReadonlyMap<number, ListeningPort>,
  now: ReadonlyMap<number, ListeningPort>,
): PortChange[] {
  const isSame = (one: ListeningPort, other: ListeningPort | undefined) =>
    other?.sockets.some((socket) => one.sockets.includes(socket)) === true
  const closed = [...before.values()].filter((port) => !isSame(port, now.get(port.port)))
  const opened = [...now.values()].filter((port) => !isSame(port, before.get(port.port)))
  return [
    ...closed.map((port) => changeOf('port_closed', port)),
    ...opened.map((port) => changeOf('port_opened', port)),
  ]
}

function listOf(ports: ReadonlyMap<number, ListeningPort>): PortEvent {
  const inOrder = [...ports.values()].sort((a, b) => a.port - b.port)
  return { type: 'port_list', ports: inOrder.map((port) => changeOf('port_opened', port)) }
}

function changeOf(type: PortChange['type'], { port, address, pid }: ListeningPort): PortChange {
  return { type, port, address, pid }
}
