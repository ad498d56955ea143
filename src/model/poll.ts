import { setTimeout as sleep } from 'node:timers/promises'

const maxPauseMs = 20

/** Polls until the condition holds; false on timeout. The pauses grow from 1 ms to 20 ms, so short waits stay short. */
export async function waitUntil(holds: () => boolean | Promise<boolean>, timeoutSeconds: number): Promise<boolean> {
  const start = performance.now()
  while (!(await holds())) {
    const waitedMs = performance.now() - start
    if (waitedMs > timeoutSeconds * 1000) return false
    await sleep(Math.min(Math.max(1, waitedMs / 20), maxPauseMs))
  }
  return true
}
