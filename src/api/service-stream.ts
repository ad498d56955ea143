import { once } from 'node:events'
import type { Telling } from '../live/service-task.ts'
import { ndjson, StreamAnswer } from './route.ts'

/** One JSON object a line. A listener that reads slowly is waited for, so that nothing piles up here. */
export function serviceStream(tell: Telling): StreamAnswer {
  const { headers } = ndjson(async () => {})
  return new StreamAnswer(200, headers, async (out, gone) => {
    out.flushHeaders()
    await tell(async (events) => {
      if (gone.aborted || events.length === 0) return
      if (out.write(events.map((event) => `${JSON.stringify(event)}\n`).join(''))) return
      await once(out, 'drain', { signal: gone }).catch(() => undefined)
    }, gone)
  })
}
