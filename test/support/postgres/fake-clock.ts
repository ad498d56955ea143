import { execFileSync } from 'node:child_process'
import { chmodSync, mkdtempSync, readdirSync, renameSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { inject } from 'vitest'
import { removeDirectory } from '../directory.ts'

/** A PostgreSQL installation whose servers see another time than the platform. */
export class FakeClock {
  readonly directory: string
  readonly bin: string
  private readonly file: string

  constructor(major: '16' | '17') {
    this.directory = mkdtempSync(join(tmpdir(), 'berth-clock-'))
    chmodSync(this.directory, 0o755)
    const installed = join(inject('preparedHome'), 'toolchain')
    const name = readdirSync(installed).find((entry) => entry.startsWith(`postgres-${major}.`))!
    execFileSync('cp', ['-a', join(installed, name), join(this.directory, 'postgres')])
    this.bin = join(this.directory, 'postgres/bin')
    this.file = join(this.directory, 'postgres/share/clock')
    const library = findLibrary()
    execFileSync('cp', [library, join(this.directory, 'postgres/lib')])
    renameSync(`${this.bin}/postgres`, `${this.bin}/postgres.real`)
    const variables = [
      `LD_PRELOAD=${this.directory}/postgres/lib/libfaketime.so.1`,
      `FAKETIME_TIMESTAMP_FILE=${this.file}`,
      'FAKETIME_NO_CACHE=1',
      'FAKETIME_DISABLE_SHM=1',
      'FAKETIME_DONT_FAKE_MONOTONIC=1',
    ]
    writeFileSync(
      `${this.bin}/postgres`,
      `#!/bin/sh\nexport ${variables.join(' ')}\nexec "${this.bin}/postgres.real" "$@"\n`,
      {
        mode: 0o755,
      },
    )
    this.set(0)
  }

  /** Moves the clock by seconds against the real time. */
  set(seconds: number): void {
    writeFileSync(`${this.file}.next`, `${seconds < 0 ? '-' : '+'}${Math.abs(seconds).toFixed(3)}\n`, { mode: 0o644 })
    renameSync(`${this.file}.next`, this.file)
  }

  /** Lets the clock run at half the speed; returns how to stop that. */
  slowDown(): () => void {
    const since = performance.now()
    const timer = setInterval(() => this.set(-(performance.now() - since) / 2000), 50)
    return () => clearInterval(timer)
  }

  async remove(): Promise<void> {
    await removeDirectory(this.directory)
  }
}

function findLibrary(): string {
  const found = execFileSync('sh', ['-c', 'ls /usr/lib/*/faketime/libfaketime.so.1']).toString().split('\n')[0]
  if (!found) throw new Error('libfaketime is not installed')
  return found
}
