import type { ChildProcessWithoutNullStreams } from 'node:child_process'
import { constants } from 'node:os'
import type { Writable } from 'node:stream'
import { spawnWithPipes } from '../../host/process.ts'
import { driverProgram } from '../../host/program.ts'
import { type BoxEntry, BoxFileError, type BoxHelper, BoxUnavailable } from '../driver.ts'

/** A helper that is working sends a record at least every second; a silence of this length means that it hangs. */
const silenceSeconds = 30
/** Paths in records can be longer than PATH_MAX, because trees are walked directory by directory. */
const maxRecordBytes = 1024 * 1024
const maxStderrBytes = 4096
/** The exit code of a helper that could not enter the box. */
const notEntered = 75

const errorNames = new Map(Object.entries(constants.errno).map(([name, number]) => [number, name]))

export type HelperScript = 'box/file/file.pl' | 'box/enter/dial.pl'

/** The entry supplies the environment that tells the script which box to enter. */
export function startHelper(entry: BoxEntry, script: HelperScript, words: string[]): BoxHelper {
  return new HelperProcess(entry, script, words)
}

class HelperProcess implements BoxHelper {
  private readonly child: ChildProcessWithoutNullStreams
  private readonly pieces: AsyncIterator<Buffer, undefined>
  private unread: Buffer = Buffer.alloc(0)
  private stderr = ''
  private hasTimedOut = false
  readonly exit: Promise<number | null>

  constructor({ program, env }: BoxEntry, script: HelperScript, words: string[]) {
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
    // The helper may exit before it has read all input; its records say why.
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

  async sendBody(body: AsyncIterable<Buffer>, onPiece: () => void = () => {}): Promise<void> {
    const { input } = this
    for await (const piece of body) {
      onPiece()
      if (input.destroyed || piece.length === 0) continue
      const length = Buffer.alloc(4)
      length.writeUInt32BE(piece.length)
      input.cork()
      input.write(length)
      const hasRoom = input.write(piece)
      input.uncork()
      if (!hasRoom) await drained(input)
    }
    input.end(Buffer.alloc(4))
  }

  async next(waiting: 'bounded' | 'forever' = 'bounded'): Promise<[string, ...string[]]> {
    const record = await this.readRecord(waiting)
    const words = record.toString('utf8').split('\0') as [string, ...string[]]
    if (words[0] !== 'error') return words
    throw new BoxFileError(errorNames.get(Number(words[1])) ?? `E${words[1]}`, words[2] ?? '', words[3])
  }

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
      const [header, digits] = /^(\d{0,7}):?/.exec(this.unread.toString('latin1', 0, 8))!
      const isWhole = header.endsWith(':')
      if (header === ':' || (!isWhole && this.unread.length > header.length)) throw this.failure()
      const end = header.length + Number(digits)
      if (end > maxRecordBytes) throw this.failure()
      if (isWhole && this.unread.length >= end) {
        const record = this.unread.subarray(header.length, end)
        this.unread = this.unread.subarray(end)
        return record
      }
      const piece = await this.readPiece(waiting)
      if (piece.done) throw await this.prematureEnd()
      this.unread = this.unread.length === 0 ? piece.value : Buffer.concat([this.unread, piece.value])
    }
  }

  private async readPiece(waiting: 'bounded' | 'forever'): Promise<IteratorResult<Buffer, undefined>> {
    const onTimeout = () => {
      this.hasTimedOut = true
      this.end()
    }
    const timer = waiting === 'forever' ? undefined : setTimeout(onTimeout, silenceSeconds * 1000)
    try {
      return await this.pieces.next()
    } catch {
      return { done: true, value: undefined } // the stream was destroyed; the exit code says why
    } finally {
      clearTimeout(timer)
    }
  }

  private async prematureEnd(): Promise<Error> {
    const code = await this.exit
    if (code === notEntered) return new BoxUnavailable('the sandbox is not running')
    if (this.hasTimedOut) return new BoxUnavailable(`the sandbox did not answer within ${silenceSeconds} s`)
    if (this.child.signalCode === 'SIGKILL') return new BoxUnavailable('the sandbox has no memory left')
    return this.failure()
  }

  private failure(): Error {
    return new Error(`helper in the box failed: ${this.stderr.trim() || 'no error output'}`)
  }
}

function drained(output: Writable): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      output.off('drain', done).off('close', done)
      resolve()
    }
    if (output.destroyed) resolve()
    else output.once('drain', done).once('close', done)
  })
}
