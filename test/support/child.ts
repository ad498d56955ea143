import type { ChildProcess } from 'node:child_process'

export interface Ended {
  code: number | null
  out: string
  err: string
}

/** What a command printed, and how it ended. */
export function endOf(child: ChildProcess, input = ''): Promise<Ended> {
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
