import { spawn } from 'node:child_process'

/** Runs a function under a file lock. A child process holds it until its stdin closes, so a crash releases it. */
export async function withLock<T>(file: string, work: () => T | Promise<T>, waitSeconds = 30): Promise<T> {
  const holder = spawn('flock', ['-w', String(waitSeconds), file, 'sh', '-c', 'echo locked; exec cat'], {
    stdio: ['pipe', 'pipe', 'ignore'],
    cwd: '/',
  })
  try {
    await new Promise<void>((resolve, reject) => {
      holder.stdout.once('data', () => resolve())
      holder.once('error', reject)
      holder.once('exit', (code) => reject(new Error(`lock ${file}: flock exited with ${code}`)))
    })
    return await work()
  } finally {
    holder.stdin.end()
  }
}
