/** Set on every terminal until a program says otherwise: wrapping of lines, and the cursor. */
const setByDefault = new Set(['7', '25'])

const esc = '\u001b'
const start = Buffer.from(`${esc}[?`)
const modeChange = new RegExp(`${esc}\\[\\?([\\d;]{1,60})([hl])`, 'g')
const maxSequenceLength = 64

/**
 * What programs have changed of a terminal and not put back, such as the second screen, the mouse and the cursor. Whoever
 * leaves a program behind puts it back in its place.
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

  /** What to write to the terminal; nothing when nothing is left to put back. */
  restore(): string {
    if (this.#changed.size === 0) return ''
    const changes = [...this.#changed].map(([mode, isSet]) => `\u001b[?${mode}${isSet ? 'l' : 'h'}`)
    this.#changed.clear()
    // Colours and unmistakable keys go with what set the rest.
    return `${changes.join('')}\u001b[<u\u001b[0m`
  }
}

/** Where a change begins that the next piece may complete; the end when none does. */
function unfinishedSequenceStart(data: Buffer): number {
  const from = data.lastIndexOf(0x1b)
  if (from < 0 || data.length - from > maxSequenceLength) return data.length
  return /[hl]/.test(data.toString('latin1', from)) ? data.length : from
}
