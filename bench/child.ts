import type { ChildProcess } from 'node:child_process'
import { chownSync, mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import type { Scope } from './scope.ts'

export async function until(holds: () => Promise<boolean> | boolean, what: string, seconds = 60, everyMillis = 5) {
  const deadline = performance.now() + seconds * 1000
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`waited ${seconds} s for ${what}`)
    await pause(everyMillis)
  }
}

export async function endChild(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return
  const ended = new Promise((resolve) => child.once('exit', resolve))
  child.kill(signal)
  await ended
}

/** Creates a directory owned by this user, and returns it with a function that removes it. */
export function ownDirectory(scope: Scope, parent: string, uid: number): [path: string, remove: () => void] {
  const path = mkdtempSync(join(parent, 'bench-'))
  const remove = () => rmSync(path, { recursive: true, force: true })
  scope.defer(remove)
  chownSync(path, uid, uid)
  return [path, remove]
}

export function plainEnvironment(): NodeJS.ProcessEnv {
  return { PATH: process.env.PATH }
}

export function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number }
      server.close(() => resolve(port))
    })
  })
}
