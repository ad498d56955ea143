import type { ChildProcessWithoutNullStreams } from 'node:child_process'
import { constants } from 'node:os'
import type { Writable } from 'node:stream'
import { spawnWithPipes } from '../../host/process.ts'
import { driverProgram } from '../../host/program.ts'
import { type BoxDriver, BoxFileError, type BoxSpec } from '../driver.ts'

/** Silence of a helper that has something to do; it says something every second. */
const silenceSeconds = 30
/** A path can be longer than the kernel takes at once, as deep as trees are walked. */
const maxRecordBytes = 1024 * 1024
const maxStderrBytes = 4096
/** The helper could not enter. */
const notEntered = 75

const errorNames = new Map(Object.entries(constants.errno).map(([name, number]) => [number, name]))

/**
 * A program of ours that enters the box by itself, for work that must not depend on what is installed there. It takes
 * the words that a command enters with; then records go in and come out, and whatever bytes its work is about.
 */
export class BoxHelper {
  private readonly child: ChildProcessWithoutNullStreams
  private readonly pieces: AsyncIterator<Buffer, undefined>
  private unread: Buffer = Buffer.alloc(0)
  private stderr = ''
  private isLate = false
  readonly exit: Promise<number | null>

  constructor(boxes: BoxDriver, spec: BoxSpec, script: 'box/file/file.pl' | 'box/enter/dial.pl', words: string[]) {
    const { program, env } = boxes.entry(spec, { argv: ['helper'] })
    const child = spawnWithPipes(program, [driverProgram(script)], { env, cwd: '/' })
    this.child = child
    this.pieces = child.stdout[Symbol.asyncIterator]()
    this.exit = new Promise((resolve) => {
      child.once('error', () => resolve(null))
      child.once('exit', resolve)
    })
    child.stderr.on('data', (data) => {
      if (this.stderr.length < maxStderrBytes) this.stderr += data
    })
    // It may end before it has read everything; why, is in its answer.
    child.stdin.on('error', () => {})
    this.send(words)
  }

  get input(): Writable {
    return this.child.stdin
  }

  send(words: string[]): void {
    const bytes = Buffer.from(words.join('\0'))
    this.input.write(Buffer.concat([Buffer.from(`${bytes.length}:`), bytes]))
  }

  /** The words of the next record. Bytes in them that are not UTF-8 become U+FFFD. */
  async next(waiting: 'bounded' | 'forever' = 'bounded'): Promise<[string, ...string[]]> {
    const record = await this.readRecord(waiting)
    const words = record.toString('utf8').split('\0') as [string, ...string[]]
    if (words[0] !== 'error') return words
    throw new BoxFileError(errorNames.get(Number(words[1])) ?? `E${words[1]}`, words[2] ?? '', words[3])
  }

  /** What follows the last record. */
  async *bytes(): AsyncGenerator<Buffer> {
    if (this.unread.length > 0) yield this.unread
    this.unread = Buffer.alloc(0)
    for (let piece = await this.pieces.next(); !piece.done; piece = await this.pieces.next()) yield piece.value
  }

  end(): void {
    this.input.destroy()
    this.child.stdout.destroy()
    this.child.kill('SIGKILL')
  }

  private async readRecord(waiting: 'bounded' | 'forever'): Promise<Buffer> {
    for (;;) {
      const [begin, digits] = /^(\d{0,7}):?/.exec(this.unread.toString('latin1', 0, 8))!
      const isWhole = begin.endsWith(':')
      if (begin === ':' || (!isWhole && this.unread.length > begin.length)) throw this.failure()
      const end = begin.length + Number(digits)
      if (end > maxRecordBytes) throw this.failure()
      if (isWhole && this.unread.length >= end) {
        const record = this.unread.subarray(begin.length, end)
        this.unread = this.unread.subarray(end)
        return record
      }
      const piece = await this.readPiece(waiting)
      if (piece.done) throw await this.early()
      this.unread = this.unread.length === 0 ? piece.value : Buffer.concat([this.unread, piece.value])
    }
  }

  private async readPiece(waiting: 'bounded' | 'forever'): Promise<IteratorResult<Buffer, undefined>> {
    const late = () => {
      this.isLate = true
      this.end()
    }
    const timer = waiting === 'forever' ? undefined : setTimeout(late, silenceSeconds * 1000)
    try {
      return await this.pieces.next()
    } catch {
      return { done: true, value: undefined } // it was cut off; why, is found out by its end
    } finally {
      clearTimeout(timer)
    }
  }

  private async early(): Promise<Error> {
    const code = await this.exit
    if (code === notEntered) return new BoxUnavailable('the sandbox is not running')
    if (this.isLate) return new BoxUnavailable(`the sandbox did not answer within ${silenceSeconds} s`)
    if (this.child.signalCode === 'SIGKILL') return new BoxUnavailable('the sandbox has no memory left')
    return this.failure()
  }

  private failure(): Error {
    return new Error(`work in a box broke off: ${this.stderr.trim() || 'it said nothing'}`)
  }
}

/** The box ended between being ensured and being entered, or has nothing to give to a further process. */
export class BoxUnavailable extends Error {}
