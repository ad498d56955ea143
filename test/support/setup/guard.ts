import { type ChildProcess, spawn } from 'node:child_process'
import { chmodSync, mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const program = new URL('guard.sh', import.meta.url).pathname

/** Makes a temporary directory that other users can traverse. It is to be guarded at once. */
export function makeDirectory(): string {
  const path = mkdtempSync(join(tmpdir(), 'berth-test-'))
  chmodSync(path, 0o711)
  return path
}

/**
 * Removes the directory with this process, however it ends, and ends the command that uses it. The guard has its own
 * session, so that Ctrl-C does not end it before it has cleaned up.
 */
export function guardDirectory(path: string, command: string[] = []): { guard: ChildProcess; close(): Promise<void> } {
  const guard = spawn(program, [path, ...command], { stdio: ['pipe', 'ignore', 'inherit'], cwd: '/', detached: true })
  const exited = new Promise<void>((resolve) => guard.once('exit', () => resolve()))
  return {
    guard,
    close() {
      guard.stdin.end()
      return exited
    },
  }
}
