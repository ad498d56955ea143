import type { Home } from '../drivers/host/home.ts'
import { isTreeRunning } from '../drivers/s6/control.ts'
import type { Supervisor } from '../drivers/s6/driver.ts'

/** Two checks in a row must fail, which leaves systemd the time to restart a tree that is its unit. */
const checkIntervalMs = 2_000

/** Restarts the supervision tree when it was killed; without it no service can be started. */
export function watchTree(
  home: Home,
  supervisor: Pick<Supervisor, 'ensureTree'>,
  onRestart: (error?: unknown) => void,
): { stop(): Promise<void> } {
  let wasMissing = false
  let restarting: Promise<void> | undefined
  const timer = setInterval(() => {
    const isMissing = !isTreeRunning({ treeDirectory: home.tree, logDirectory: home.log })
    if (isMissing && wasMissing && restarting === undefined) {
      restarting = supervisor
        .ensureTree()
        .then(() => onRestart(), onRestart)
        .finally(() => {
          restarting = undefined
        })
    }
    wasMissing = isMissing
  }, checkIntervalMs)
  return {
    async stop() {
      clearInterval(timer)
      await restarting
    },
  }
}
