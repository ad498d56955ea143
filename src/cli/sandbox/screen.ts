/** Modes that terminals set by default: line wrapping and a visible cursor. */
const setByDefault = new Set(['7', '25'])

const esc = '\u001b'
const start = Buffer.from(`${esc}[?`)
const modeChange = new RegExp(`${esc}\\[\\?([\\d;]{1,60})([hl])`, 'g')
const maxSequenceLength = 64

/**
 * Tracks terminal modes that a program has changed, such as the alternate screen, mouse reporting and the cursor, so that
 * they can be restored when the client detaches from the program.
 */
export class ScreenModes {
  readonly #changed = new Map<string, boolean>()
  #rest: Buffer = Buffer.alloc(0)

  observe(output: Buffer): void {
    const data = this.#rest.length > 0 ? Buffer.concat([this.#rest, output]) : output
    this.#rest = data.subarray(unfinishedSequenceStart(data))
    if (!data.includes(start)) return
    for (const [, modes, action] of data.toString('latin1').matchAll(modeChange)) {
      for (const mode of modes!.split(';')) this.#note(mode, action === 'h')
    }
  }

  #note(mode: string, isSet: boolean): void {
    if (isSet === setByDefault.has(mode)) this.#changed.delete(mode)
    else this.#changed.set(mode, isSet)
  }

  /** Returns the sequences that restore the terminal, or an empty text when nothing has changed. */
  restore(): string {
    if (this.#changed.size === 0) return ''
    const changes = [...this.#changed].map(([mode, isSet]) => `\u001b[?${mode}${isSet ? 'l' : 'h'}`)
    this.#changed.clear()
    // A program that changes modes may also have changed colours and the keyboard protocol.
    return `${changes.join('')}\u001b[<u\u001b[0m`
  }
}

/** The start of an escape sequence that the next chunk may complete, or the end of the data. */
function unfinishedSequenceStart(data: Buffer): number {
  const from = data.lastIndexOf(0x1b)
  if (from < 0 || data.length - from > maxSequenceLength) return data.length
  return /[hl]/.test(data.toString('latin1', from)) ? data.length : from
}
