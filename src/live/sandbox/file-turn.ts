// Each file operation is a process. However many are asked for at once, only so many of a sandbox run; the others wait
// their turn, and not for ever.
import { unavailable } from '../../model/errors.ts'

const mostAtOnce = 16
const mostWaiting = 256
const waitSeconds = 10

interface Line {
  running: number
  waiting: Set<() => void>
}

const lines = new Map<string, Line>()

/** Answers with what gives the turn back. */
export async function takeTurn(sandboxId: string): Promise<() => void> {
  const line = lines.get(sandboxId) ?? { running: 0, waiting: new Set() }
  lines.set(sandboxId, line)
  if (line.running < mostAtOnce) line.running += 1
  else await standInLine(line)
  let given = false
  return () => {
    if (given) return
    given = true
    giveBack(sandboxId, line)
  }
}

function giveBack(sandboxId: string, line: Line): void {
  const [next] = line.waiting
  if (next) {
    line.waiting.delete(next)
    next() // it takes over this turn, so that the number stays
    return
  }
  line.running -= 1
  if (line.running === 0) lines.delete(sandboxId)
}

function standInLine(line: Line): Promise<void> {
  const tooMany = () => unavailable('too many file operations of this sandbox at once')
  if (line.waiting.size >= mostWaiting) throw tooMany()
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      line.waiting.delete(go)
      reject(tooMany())
    }, waitSeconds * 1000)
    const go = () => {
      clearTimeout(timer)
      resolve()
    }
    line.waiting.add(go)
  })
}
