import type { ChildProcess } from 'node:child_process'

export interface ExitResult {
  code: number | null
  out: string
  err: string
}

/** Waits for a child process to end, and returns its output and exit code. */
export function waitForExit(child: ChildProcess, input = ''): Promise<ExitResult> {
  let [out, err] = ['', '']
  child.stdout!.on('data', (data) => {
    out += data
  })
  child.stderr!.on('data', (data) => {
    err += data
  })
  child.stdin!.on('error', () => undefined).end(input)
  return new Promise((resolve) => child.on('close', (code) => resolve({ code, out, err })))
}
