import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { OpenApiDocument } from '../http/openapi.ts'
import { curlOf } from './example.ts'
import { explanation, fieldTable, presence, rowsOf, table, typeName } from './field-table.ts'
import { type Html, html, inline, prose, raw, slug } from './html.ts'
import { jsonSample, sample } from './sample.ts'
import {
  type Content,
  type Group,
  groupByTag,
  type Json,
  type Operation,
  operationsOf,
  type Parameter,
  type Response,
  text,
} from './shape.ts'
import { docsStyle } from './style.ts'

/** A request body with more rows than this is collapsed at first; the example beside it shows the usual fields. */
const maxOpenRows = 12

/** Shown by browsers without scripts; the script replaces it by the address of the page. */
const exampleAddress = 'https://berth.example.com'

const readScript = () => readFileSync(new URL('./browser.js', import.meta.url), 'utf8')

/** Nothing but the page's own style and script is used, and the script can reach this address only. */
export function docsHeaders(): Record<string, string> {
  const policy = [
    "default-src 'none'",
    `style-src '${hashOf(docsStyle)}'`,
    `script-src '${hashOf(readScript())}'`,
    "connect-src 'self'",
    'img-src data:',
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ]
  return { 'content-security-policy': policy.join('; '), 'referrer-policy': 'no-referrer' }
}

function hashOf(text: string): string {
  return `sha256-${createHash('sha256').update(text).digest('base64')}`
}

/**
 * Renders the API reference as one page without external resources. `urlVariable` is the environment variable
 * from which its examples and the command line read the address.
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
<script type="module">${raw(readScript())}</script>
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
<search class="needs-script" hidden><input id="search" type="search" placeholder="Search  /" aria-label="Search operations" autocomplete="off" spellcheck="false"><output id="matches" for="search"></output></search>
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
  const settings = html`export ${urlVariable}='<span class="origin">${exampleAddress}</span>'\nexport BERTH_TOKEN='berth_…'`
  return html`<section class="start" aria-labelledby="start-authentication">
<div class="told"><h2 id="start-authentication">Authentication</h2>
<div class="prose">${prose(text(info.description))}${schemes.map((scheme) => html`<p>Send ${inline(text(scheme.description))} with each request.</p>`)}
<p>The examples on this page read the address of your installation and your token from the environment; set both once, and every example can be pasted unchanged.</p>
<p>The root token is in the file <code>token</code> in the home of the platform; <code>berth tokens create</code> creates further tokens.</p></div>
<label class="needs-script token" hidden><span>Your token, to try operations on this page</span><input id="token" type="password" autocomplete="off" spellcheck="false" placeholder="berth_…"><span class="hint">It is kept in the memory of this page, until you reload or close it.</span></label></div>
<div class="shown">${sample('Once per shell', html`<code class="all">${settings}</code>`, 'click to select')}</div>
</section>`
}

/** All errors have the same format, so it is described once. */
function errorSection(operations: Operation[]): Html {
  const content = operations.flatMap(({ responses }) => responses).find(({ status }) => status >= '4')?.content
  if (!content) return html`<span id="start-errors"></span>`
  return html`<section class="start" aria-labelledby="start-errors">
<div class="told"><h2 id="start-errors">Errors</h2>
<div class="prose"><p>An error has a status of 400 or above and a body in this format. Each operation lists its possible statuses.</p></div>
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
  const { id, operationId, method, path, summary, description, responses } = operation
  const done = responses.filter(({ status }) => status < '4')
  const refused = responses.filter(({ status }) => status >= '4')
  return html`<article class="operation" id="${id}" data-id="${operationId}" aria-labelledby="${id}-title">
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
<details class="try" hidden><summary>Try it</summary></details>
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
  const open = rowsOf(body.shape, 0).length > maxOpenRows ? '' : ' open'
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

function markOf(namespace = ''): Html {
  return html`<svg class="mark" viewBox="0 0 32 32" aria-hidden="true" ${namespace ? html`xmlns="${namespace}"` : ''}><rect width="32" height="32" rx="8" fill="#0b6285"/><path d="M10 7v11M10 12h6.500a3 3 0 0 1 0 6H10M7 23c2.200 0 2.200 2 4.500 2s2.300-2 4.500-2 2.300 2 4.500 2 2.300-2 4.500-2" fill="none" stroke="#fff" stroke-width="2.400" stroke-linecap="round" stroke-linejoin="round"/></svg>`
}
