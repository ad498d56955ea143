import type { OpenApiDocument } from '../http/openapi.ts'
import { curlOf, exampleOf } from './example.ts'
import { type Html, html, inline, type Part, prose, raw, slug } from './html.ts'
import {
  type Content,
  type Field,
  type Group,
  groupByTag,
  type Json,
  type Operation,
  operationsOf,
  type Parameter,
  type Response,
  type Shape,
  text,
} from './shape.ts'
import { docsStyle } from './style.ts'

interface Row {
  depth: number
  field?: Field
  option?: string
}

/** Schemas nested deeper than this are named but not unfolded: a page nobody can read helps nobody. */
const deepest = 5

/** A request body of more rows than this starts folded; the example beside it tells most of it. */
const longTable = 12

const exampleAddress = 'https://berth.example.com'

/** The page as it is for those who reached it at this address, so that its examples lead there. */
export function docsAt(page: string, protocol: string, host: string): string {
  return /^[\w.:[\]-]+$/.test(host) ? page.replace(exampleAddress, `${protocol}://${host}`) : page
}

/**
 * The API reference as one page that needs no script and loads nothing. `urlVariable` is the variable of the shell that
 * its examples and the command line find the address in.
 */
export function docsPage(document: OpenApiDocument, urlVariable = 'BERTH_URL'): string {
  const operations = operationsOf(document)
  const groups = groupByTag(document, operations)
  const { title, summary } = document.info
  const icon = `data:image/svg+xml,${encodeURIComponent(markOf('http://www.w3.org/2000/svg').html)}`
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="description" content="${text(summary)}">
<title>${text(title)} API reference</title>
<link rel="icon" href="${icon}">
<style>${raw(docsStyle)}</style>
</head>
<body>
<a class="skip" href="#reference">Skip to the reference</a>
${pageHead(document, operations.length)}
${sidebar(text(title), groups)}
<main id="reference">
${startSection(document, urlVariable)}
${errorSection(operations)}
${groups.map((group) => tagSection(group, urlVariable))}
</main>
</body>
</html>
`.html
}

function pageHead({ info, openapi }: OpenApiDocument, count: number): Html {
  const license = text((info.license as Json | undefined)?.name)
  return html`<header class="head" id="top">
<h1>${text(info.title)} API</h1>
<p class="lead">${text(info.summary)}</p>
<div class="facts"><span>Version ${text(info.version)}</span><span>${count} ${count === 1 ? 'operation' : 'operations'}</span>${
    license ? html`<span>${license}</span>` : ''
  }<a href="/openapi.json">OpenAPI ${openapi} document</a></div>
</header>`
}

function sidebar(title: string, groups: Group[]): Html {
  return html`<nav class="side" aria-label="Operations">
<a class="brand" href="#top">${markOf()}<span>${title}</span></a>
<details class="menu"><summary>Operations</summary>
<ul><li><a class="plain" href="#start-authentication">Authentication</a></li><li><a class="plain" href="#start-errors">Errors</a></li></ul>
${groups.map(sidebarGroup)}
</details>
</nav>`
}

function sidebarGroup({ name, operations }: Group): Html {
  const links = operations.map(
    ({
      id,
      method,
      summary,
    }) => html`<li><a href="#${id}">${methodBadge(method, shortName(method))}<span>${summary}</span></a></li>
`,
  )
  return html`<details class="group" open><summary>${name}<span class="count">${operations.length}</span></summary>
<ul>
${links}</ul></details>
`
}

function shortName(method: string): string {
  return method === 'delete' ? 'del' : method
}

function methodBadge(method: string, label = method): Html {
  return html`<span class="method ${method}">${label.toUpperCase()}</span>`
}

function startSection({ info, components }: OpenApiDocument, urlVariable: string): Html {
  const schemes = Object.values(components.securitySchemes) as Json[]
  const settings = `export ${urlVariable}='${exampleAddress}'\nexport BERTH_TOKEN='berth_…'`
  return html`<section class="start" aria-labelledby="start-authentication">
<div class="told"><h2 id="start-authentication">Authentication</h2>
<div class="prose">${prose(text(info.description))}${schemes.map((scheme) => html`<p>Send ${inline(text(scheme.description))} with each request.</p>`)}
<p>The examples on this page read the address of your installation and your token from the environment; set both once and every example can be pasted as it stands.</p>
<p>The root token is the one in the file <code>token</code> of the home of the platform; <code>berth tokens create</code> makes others.</p></div></div>
<div class="shown">${sample('Once per shell', html`<code class="all">${settings}</code>`, 'click to select')}</div>
</section>`
}

/** All refusals have the same form, so it is told once. */
function errorSection(operations: Operation[]): Html {
  const content = operations.flatMap(({ responses }) => responses).find(({ status }) => status >= '4')?.content
  if (!content) return html`<span id="start-errors"></span>`
  return html`<section class="start" aria-labelledby="start-errors">
<div class="told"><h2 id="start-errors">Errors</h2>
<div class="prose"><p>A refused request answers with a status of 400 or above and a body of this form. Each operation lists the statuses it can give.</p></div>
${fieldTable('Fields of an error', content.shape, 'Present', 'always')}</div>
<div class="shown">${jsonSample('Error', content.shape)}</div>
</section>`
}

function tagSection({ name, description, operations }: Group, urlVariable: string): Html {
  const id = `tag-${slug(name)}`
  return html`<section class="tag" aria-labelledby="${id}">
<h2 id="${id}">${name}</h2>
${description ? html`<p class="lead">${inline(description)}</p>` : ''}
${operations.map((operation) => operationArticle(operation, urlVariable))}
</section>
`
}

function operationArticle(operation: Operation, urlVariable: string): Html {
  const { id, method, path, summary, description, responses } = operation
  const done = responses.filter(({ status }) => status < '4')
  const refused = responses.filter(({ status }) => status >= '4')
  return html`<article class="operation" id="${id}" aria-labelledby="${id}-title">
<div class="told">
<div class="title"><h3 id="${id}-title"><a href="#${id}">${summary}</a></h3>
<p class="call">${methodBadge(method)}<code>${path}</code></p></div>
${description ? html`<div class="prose">${prose(description)}</div>` : ''}
${parameterPart(operation.parameters)}
${bodyPart(operation.body)}
${done.map(responsePart)}
${errorPart(refused)}
</div>
<div class="shown">${sample('Request', html`<code class="all">${curlOf(operation, urlVariable)}</code>`, 'click to select')}
${done.map(({ status, content }) => (content ? jsonSample(`Response ${status}`, content.shape) : ''))}</div>
</article>
`
}

function parameterPart(parameters: Parameter[]): Html | undefined {
  if (parameters.length === 0) return undefined
  const rows = parameters.map(({ name, place, required, description, shape }) => ({
    cells: [
      html`<code class="name">${name}</code>`,
      html`<span class="type">${place}</span>`,
      html`<span class="type">${typeName(shape)}</span>`,
      presence(required, 'required'),
      explanation(description || shape.description, shape),
    ],
  }))
  const head = ['Name', 'In', 'Type', 'Required', 'Description']
  return html`<div class="part"><h4>Parameters</h4>${table('Parameters', head, rows)}</div>`
}

function bodyPart(body: Content | undefined): Html | undefined {
  if (!body) return undefined
  const open = rowsOf(body.shape, 0).length > longTable ? '' : ' open'
  return html`<details class="part"${open}><summary><h4>Request body</h4><span class="hint">${body.mediaType}</span></summary>
${fieldTable('Fields of the request body', body.shape, 'Required', 'required')}</details>`
}

function responsePart({ status, description, content }: Response): Html {
  const head = html`<h4>Response</h4><span class="status good">${status}</span><span class="hint">${inline(description)}</span>`
  if (!content) return html`<div class="part"><div class="call">${head}</div></div>`
  return html`<details class="part"><summary>${head}</summary>
${fieldTable(`Fields of the response ${status}`, content.shape, 'Present', 'always')}</details>`
}

function errorPart(responses: Response[]): Html | undefined {
  if (responses.length === 0) return undefined
  const badges = responses.map(({ status }) => statusBadge(status))
  const rows = responses.map(({ status, description }) => ({ cells: [statusBadge(status), inline(description)] }))
  return html`<details class="part errors"><summary><h4>Errors</h4>${badges}</summary>
${table('Errors', ['Status', 'When'], rows)}</details>`
}

function statusBadge(status: string): Html {
  return html`<span class="status">${status}</span> `
}

function fieldTable(label: string, shape: Shape, presenceHead: string, presenceWord: string): Html {
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

/** A phone shows rows as blocks, and browsers then forget that this is a table unless the roles are written down. */
function table(label: string, head: string[], rows: { cells: Part[]; className?: string }[]): Html {
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

function presence(required: boolean, word: string): Html {
  return required
    ? html`<span class="${word === 'required' ? 'must' : 'sure'}">${word}</span>`
    : html`<span class="may">optional</span>`
}

function explanation(description: string, shape: Shape): Part {
  const rules = rulesOf(shape)
  return [
    description ? html`<p>${inline(description)}</p>` : '',
    rules.length > 0 ? html`<div class="rules">${rules.map((rule) => html`<span>${rule}</span>`)}</div>` : '',
  ]
}

function rulesOf({ schema, items, again }: Shape): Part[] {
  const rules: Part[] = [
    list('One of', schema.enum),
    span(schema.minimum, schema.maximum, ''),
    schema.exclusiveMinimum === undefined ? undefined : `more than ${schema.exclusiveMinimum}`,
    schema.exclusiveMaximum === undefined ? undefined : `less than ${schema.exclusiveMaximum}`,
    schema.multipleOf === undefined ? undefined : `a multiple of ${schema.multipleOf}`,
    span(schema.minLength, schema.maxLength, ' characters'),
    span(schema.minItems, schema.maxItems, ' items'),
    span(schema.minProperties, schema.maxProperties, ' entries'),
    schema.uniqueItems === true ? 'no item twice' : undefined,
    schema.pattern === undefined ? undefined : html`matches <code>${text(schema.pattern)}</code>`,
    schema.default === undefined ? undefined : html`default <code>${JSON.stringify(schema.default)}</code>`,
    again === undefined ? undefined : html`the fields of <code>${again}</code>`,
  ].filter((rule) => rule !== undefined)
  const each = items && items.fields.length === 0 ? rulesOf(items).map((rule) => html`each: ${rule}`) : []
  return [...rules, ...each]
}

function list(word: string, values: unknown): Part {
  if (!Array.isArray(values)) return undefined
  return html`${word} ${values.map((value, at) => [at > 0 ? ', ' : '', html`<code>${plain(value)}</code>`])}`
}

function span(least: unknown, most: unknown, unit: string): string | undefined {
  if (least === undefined && most === undefined) return undefined
  if (least === undefined) return `at most ${plain(most)}${unit}`
  if (most === undefined) return `at least ${plain(least)}${unit}`
  return least === most ? `exactly ${plain(least)}${unit}` : `${plain(least)} to ${plain(most)}${unit}`
}

function plain(value: unknown): string {
  if (typeof value === 'number') return value.toLocaleString('en', { useGrouping: Math.abs(value) >= 10_000 })
  return typeof value === 'string' ? value : JSON.stringify(value)
}

function typeName(shape: Shape): string {
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

/** The fields of a shape in reading order, each followed by the fields inside it. */
function rowsOf(shape: Shape, depth: number): Row[] {
  if (depth > deepest) return []
  if (shape.items) return rowsOf(shape.items, depth)
  const own = shape.fields.flatMap((field): Row[] => [{ depth, field }, ...rowsOf(field.shape, depth + 1)])
  return [...own, ...shape.options.flatMap((option, at) => optionRows(option, depth, at))]
}

function optionRows(option: Shape, depth: number, at: number): Row[] {
  const rows = rowsOf(option, depth)
  if (rows.length === 0) return []
  return [{ depth, option: `${at === 0 ? 'Either' : 'Or'}: ${option.description || typeName(option)}` }, ...rows]
}

function jsonSample(caption: string, shape: Shape): Html {
  const value = exampleOf(shape, '', false)
  return sample(caption, html`<code>${coloured(JSON.stringify(value, null, 2))}</code>`)
}

/** The block can be scrolled, so it must be reachable by keyboard. */
function sample(caption: string, code: Html, hint = ''): Html {
  return html`<figure class="sample"><figcaption><span>${caption}</span><span>${hint}</span></figcaption>
<pre tabindex="0" role="group" aria-label="${caption}">${code}</pre></figure>`
}

/** Outside of strings and words, JSON is brackets, commas and blanks; so escaping those is escaping all. */
function coloured(json: string): Html {
  const token = /("(?:[^"\\]|\\.)*")(\s*:)?|[\w.+-]+/g
  return raw(
    json.replace(token, (word, quoted: string | undefined, colon: string | undefined) => {
      if (!quoted) return html`<span class="v">${word}</span>`.html
      return html`<span class="${colon ? 'k' : 's'}">${quoted}</span>${colon}`.html
    }),
  )
}

function markOf(namespace = ''): Html {
  return html`<svg class="mark" viewBox="0 0 32 32" aria-hidden="true" ${namespace ? html`xmlns="${namespace}"` : ''}><rect width="32" height="32" rx="8" fill="#0b6285"/><path d="M10 7v11M10 12h6.500a3 3 0 0 1 0 6H10M7 23c2.200 0 2.200 2 4.500 2s2.300-2 4.500-2 2.300 2 4.500 2 2.300-2 4.500-2" fill="none" stroke="#fff" stroke-width="2.400" stroke-linecap="round" stroke-linejoin="round"/></svg>`
}
