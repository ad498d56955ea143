import { exampleOf } from './example.ts'
import { type Html, html, raw } from './html.ts'
import type { Shape } from './shape.ts'

export function jsonSample(caption: string, shape: Shape): Html {
  const value = exampleOf(shape, '', false)
  return sample(caption, html`<code>${highlight(JSON.stringify(value, null, 2))}</code>`)
}

/** The block is focusable, because it must be scrollable with the keyboard. */
export function sample(caption: string, code: Html, hint = ''): Html {
  return html`<figure class="sample"><figcaption><span>${caption}</span><span>${hint}</span></figcaption>
<pre tabindex="0" role="group" aria-label="${caption}">${code}</pre></figure>`
}

/** Escapes and highlights strings and words; the rest of JSON is brackets, commas and whitespace, which need no escaping. */
function highlight(json: string): Html {
  const token = /("(?:[^"\\]|\\.)*")(\s*:)?|[\w.+-]+/g
  return raw(
    json.replace(token, (word, quoted: string | undefined, colon: string | undefined) => {
      if (!quoted) return html`<span class="v">${word}</span>`.html
      return html`<span class="${colon ? 'k' : 's'}">${quoted}</span>${colon}`.html
    }),
  )
}
