import { run } from '../host/process.ts'

/** Attaches a file to a loop device, or returns the one it is attached to. Two of them would destroy the file system. */
export async function attachLoop(file: string): Promise<string> {
  const attach = (...options: string[]) => run('losetup', ['--find', '--show', '--nooverlap', ...options, file])
  // Direct I/O keeps blocks from being cached twice. Some file systems do not support it.
  const { stdout } = await attach('--direct-io=on').catch(() => attach())
  return stdout.trim()
}

/** Detaches the device as soon as it is not mounted any more. */
export async function releaseLoop(device: string): Promise<void> {
  await run('losetup', ['--detach', device]).catch(ignoreDetached)
}

function ignoreDetached(error: Error): void {
  if (!/No such device/.test(error.message)) throw error
}
