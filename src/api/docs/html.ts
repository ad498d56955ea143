/** Safe markup. Strings that are not wrapped in it are escaped, so escaping cannot be forgotten. */
export interface Html {
  readonly html: string
}

export type Part = Html | string | number | undefined | readonly Part[]

export function prose(value: string): Html[] {
  const paragraphs = value.split(/\n{2,}/).filter((paragraph) => paragraph !== '')
  return paragraphs.map((paragraph) => html`<p>${inline(paragraph)}</p>`)
}

/** Renders backticks as code; descriptions use no other markup. */
export function inline(value: string): Html[] {
  return value
    .split(/(`[^`]+`)/)
    .map((piece) => (/^`.+`$/s.test(piece) ? html`<code>${piece.slice(1, -1)}</code>` : html`${piece}`))
}

export function slug(value: string): string {
  return value.replace(/[^A-Za-z0-9_]+/g, '-').replace(/^-|-$/g, '')
}

export function html(strings: TemplateStringsArray, ...parts: Part[]): Html {
  return raw(strings.map((string, at) => string + markup(parts[at])).join(''))
}

export function raw(markup: string): Html {
  return { html: markup }
}

function markup(part: Part): string {
  if (part === undefined) return ''
  if (typeof part === 'string' || typeof part === 'number') return escaped(String(part))
  return 'html' in part ? part.html : part.map(markup).join('')
}

const entities: Record<string, string> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' }

function escaped(value: string): string {
  return value.replace(/[&<>"']/g, (character) => entities[character]!)
}
