import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type IPty, spawn } from '@lydell/node-pty'
import { expect } from 'vitest'
import type { Berth } from './berth.ts'
import { until } from './until.ts'

const launcher = new URL('../../berth', import.meta.url).pathname

/** Runs a command of the CLI on its own terminal and lets the test type and read the screen. */
export class Console {
  readonly terminal: IPty
  seen = ''
  code: number | undefined
  private readonly directory = mkdtempSync(join(tmpdir(), 'berth-console-'))

  constructor({ environment }: Pick<Berth, 'environment'>, args: string[], cwd = '/') {
    // The terminal settings before and after the command are saved, to compare them.
    const script = 'at=$1; shift; stty -g > "$at/before"; "$0" "$@"; code=$?; stty -g > "$at/after"; exit $code'
    const options = { cols: 100, rows: 30, env: environment, cwd }
    this.terminal = spawn('sh', ['-c', script, launcher, this.directory, ...args], options)
    this.terminal.onData((data) => {
      this.seen += data
    })
    this.terminal.onExit(({ exitCode }) => {
      this.code = exitCode
    })
  }

  type(text: string): void {
    this.terminal.write(text)
  }

  async sees(text: string | RegExp): Promise<void> {
    const isSeen = () => (typeof text === 'string' ? this.seen.includes(text) : text.test(this.seen))
    await until(isSeen).catch(() => {
      throw new Error(`not seen: ${text}; but: ${JSON.stringify(this.seen)}`)
    })
  }

  /** Returns the exit code, after a check that the settings of the terminal are restored. */
  async exit(): Promise<number> {
    await until(() => this.code !== undefined)
    expect(readFileSync(join(this.directory, 'after'))).toEqual(readFileSync(join(this.directory, 'before')))
    return this.code!
  }

  /** The process that the shell at the terminal waits for. */
  get commandPid(): number {
    const { pid } = this.terminal
    return Number(readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ')[0])
  }

  close(): void {
    if (this.code === undefined) this.terminal.kill('SIGKILL')
    rmSync(this.directory, { recursive: true, force: true })
  }
}
