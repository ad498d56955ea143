import type { Home } from '../drivers/host/home.ts'
import { treeAnswers } from '../drivers/s6/control.ts'
import type { Supervisor } from '../drivers/s6/supervisor.ts'

/** Where the tree is a unit of its own, that one is back within a second look. */
const lookMs = 2_000

/** Brings the supervision tree back when it was killed: until then nothing new can be started. */
export function watchTree(
  home: Home,
  supervisor: Pick<Supervisor, 'ensureTree'>,
  onChange: (error?: unknown) => void,
): { stop(): Promise<void> } {
  let wasGone = false
  let returning: Promise<void> | undefined
  const timer = setInterval(() => {
    const isGone = !treeAnswers({ treeDirectory: home.tree, logDirectory: home.log })
    if (isGone && wasGone && returning === undefined) {
      returning = supervisor
        .ensureTree()
        .then(() => onChange(), onChange)
        .finally(() => {
          returning = undefined
        })
    }
    wasGone = isGone
  }, lookMs)
  return {
    async stop() {
      clearInterval(timer)
      await returning
    },
  }
}
