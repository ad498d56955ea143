import { type Html, html, inline, type Part } from './html.ts'
import { type Field, type Shape, text } from './shape.ts'

interface Row {
  depth: number
  field?: Field
  option?: string
}

/** Schemas nested deeper than this are named but not expanded, to keep the page readable. */
const maxDepth = 5

export function fieldTable(label: string, shape: Shape, presenceHead: string, presenceWord: string): Html {
  const rows = rowsOf(shape, 0)
  if (rows.length === 0) return html`<p><span class="type">${typeName(shape)}</span> ${inline(shape.description)}</p>`
  const cells = rows.map((row) => ({
    className: `d${row.depth}${row.option ? ' option' : ''}`,
    cells: rowCells(row, presenceWord),
  }))
  const needs = shape.needs.map((names) => names.map((name) => `\`${name}\``).join(' and '))
  return html`${table(label, ['Field', 'Type', presenceHead, 'Description'], cells)}
${needs.length > 0 ? html`<p class="hint">Also required: ${inline(needs.join(' or '))}.</p>` : ''}`
}

function rowCells({ field, option }: Row, presenceWord: string): Part[] {
  if (!field) return [option, '', '', '']
  return [
    html`<code class="name">${field.name}</code>`,
    html`<span class="type">${typeName(field.shape)}</span>`,
    presence(field.required, presenceWord),
    explanation(field.shape.description, field.shape),
  ]
}

/** Small screens show rows as blocks, and browsers then drop the table semantics unless the roles are explicit. */
export function table(label: string, head: string[], rows: { cells: Part[]; className?: string }[]): Html {
  return html`<table role="table" aria-label="${label}"><thead role="rowgroup"><tr role="row">${head.map(
    (name) => html`<th role="columnheader" scope="col">${name}</th>`,
  )}</tr></thead><tbody role="rowgroup">
${rows.map(
  ({
    cells,
    className = 'd0',
  }) => html`<tr role="row" class="${className}">${cells.map((cell) => html`<td role="cell">${cell}</td>`)}</tr>
`,
)}</tbody></table>`
}

export function presence(required: boolean, word: string): Html {
  return required
    ? html`<span class="${word === 'required' ? 'must' : 'sure'}">${word}</span>`
    : html`<span class="may">optional</span>`
}

export function explanation(description: string, shape: Shape): Part {
  const rules = rulesOf(shape)
  return [
    description ? html`<p>${inline(description)}</p>` : '',
    rules.length > 0 ? html`<div class="rules">${rules.map((rule) => html`<span>${rule}</span>`)}</div>` : '',
  ]
}

function rulesOf({ schema, items, recursive }: Shape): Part[] {
  const rules: Part[] = [
    list('One of', schema.enum),
    range(schema.minimum, schema.maximum, ''),
    schema.exclusiveMinimum === undefined ? undefined : `more than ${schema.exclusiveMinimum}`,
    schema.exclusiveMaximum === undefined ? undefined : `less than ${schema.exclusiveMaximum}`,
    schema.multipleOf === undefined ? undefined : `a multiple of ${schema.multipleOf}`,
    range(schema.minLength, schema.maxLength, ' characters'),
    range(schema.minItems, schema.maxItems, ' items'),
    range(schema.minProperties, schema.maxProperties, ' entries'),
    schema.uniqueItems === true ? 'unique items' : undefined,
    schema.pattern === undefined ? undefined : html`matches <code>${text(schema.pattern)}</code>`,
    schema.default === undefined ? undefined : html`default <code>${JSON.stringify(schema.default)}</code>`,
    recursive === undefined ? undefined : html`the fields of <code>${recursive}</code>`,
  ].filter((rule) => rule !== undefined)
  const each = items && items.fields.length === 0 ? rulesOf(items).map((rule) => html`each: ${rule}`) : []
  return [...rules, ...each]
}

function list(word: string, values: unknown): Part {
  if (!Array.isArray(values)) return undefined
  return html`${word} ${values.map((value, at) => [at > 0 ? ', ' : '', html`<code>${formatValue(value)}</code>`])}`
}

function range(min: unknown, max: unknown, unit: string): string | undefined {
  if (min === undefined && max === undefined) return undefined
  if (min === undefined) return `at most ${formatValue(max)}${unit}`
  if (max === undefined) return `at least ${formatValue(min)}${unit}`
  return min === max ? `exactly ${formatValue(min)}${unit}` : `${formatValue(min)} to ${formatValue(max)}${unit}`
}

function formatValue(value: unknown): string {
  if (typeof value === 'number') return value.toLocaleString('en', { useGrouping: Math.abs(value) >= 10_000 })
  return typeof value === 'string' ? value : JSON.stringify(value)
}

export function typeName(shape: Shape): string {
  const name =
    shape.options.length > 0 && shape.fields.length === 0
      ? [...new Set(shape.options.map(typeName))].join(' or ')
      : ownTypeName(shape)
  return shape.nullable ? `${name} or null` : name
}

function ownTypeName({ type, items, schema }: Shape): string {
  if (items) return `${type} of ${typeName(items)}`
  if (schema.const !== undefined) return JSON.stringify(schema.const)
  return typeof schema.format === 'string' ? `${type} (${schema.format})` : type
}

/** Lists the fields of a shape depth first. */
export function rowsOf(shape: Shape, depth: number): Row[] {
  if (depth > maxDepth) return []
  if (shape.items) return rowsOf(shape.items, depth)
  const own = shape.fields.flatMap((field): Row[] => [{ depth, field }, ...rowsOf(field.shape, depth + 1)])
  return [...own, ...shape.options.flatMap((option, at) => optionRows(option, depth, at))]
}

function optionRows(option: Shape, depth: number, at: number): Row[] {
  const rows = rowsOf(option, depth)
  if (rows.length === 0) return []
  return [{ depth, option: `${at === 0 ? 'Either' : 'Or'}: ${option.description || typeName(option)}` }, ...rows]
}
