import { type ChildProcess, spawn } from 'node:child_process'
import type { BoxDriver, BoxSpec } from './box.ts'

/**
 * Starts a program of ours that enters the box by itself, for work that must not depend on what is installed there. It
 * takes the words that a command enters with.
 */
export function spawnHelper(boxes: BoxDriver, spec: BoxSpec, script: 'box-file.pl' | 'box-dial.pl'): ChildProcess {
  const { program, env } = boxes.entry(spec, { argv: ['helper'] })
  return spawn(program, [new URL(`./${script}`, import.meta.url).pathname], { env, cwd: '/', stdio: 'pipe' })
}
