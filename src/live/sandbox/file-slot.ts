// Each file operation is a process. The number of simultaneous ones per sandbox is limited; further ones wait for a slot.
import { unavailable } from '../../model/errors.ts'

const maxRunning = 16
const maxWaiting = 256
const maxWaitSeconds = 10

interface Queue {
  running: number
  waiting: Set<() => void>
}

const queues = new Map<string, Queue>()

/** Returns the function that releases the slot. */
export async function acquireFileSlot(sandboxId: string): Promise<() => void> {
  const queue = queues.get(sandboxId) ?? { running: 0, waiting: new Set() }
  queues.set(sandboxId, queue)
  if (queue.running < maxRunning) queue.running += 1
  else await waitForSlot(queue)
  let isReleased = false
  return () => {
    if (isReleased) return
    isReleased = true
    release(sandboxId, queue)
  }
}

function release(sandboxId: string, queue: Queue): void {
  const [next] = queue.waiting
  if (next) {
    queue.waiting.delete(next)
    next() // it takes over this slot, so the count stays
    return
  }
  queue.running -= 1
  if (queue.running === 0) queues.delete(sandboxId)
}

function waitForSlot(queue: Queue): Promise<void> {
  const tooMany = () => unavailable('too many file operations of this sandbox at once')
  if (queue.waiting.size >= maxWaiting) throw tooMany()
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      queue.waiting.delete(proceed)
      reject(tooMany())
    }, maxWaitSeconds * 1000)
    const proceed = () => {
      clearTimeout(timer)
      resolve()
    }
    queue.waiting.add(proceed)
  })
}
