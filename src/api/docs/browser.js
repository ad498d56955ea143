// Runs in the browser that shows the API reference: search, and "try it". It is a part of the page, which allows no other
// script. Text from the API only ever becomes text, never markup. The token stays in this variable.
let token = ''

const $ = (selector, within = document) => within.querySelector(selector)
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)]

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties)
  made.append(...children)
  return made
}

// The examples show the address from which the page was loaded.
for (const place of $$('.origin')) place.textContent = location.origin

// Search

const search = $('#search')
const matches = $('#matches')
let index

/** Reads the words of all operations when they are first needed. */
function operations() {
  index ??= $$('.operation').map((article) => ({
    article,
    link: $(`.side a[href="#${CSS.escape(article.id)}"]`)?.closest('li'),
    words: `${article.id} ${$('.told', article).textContent}`.toLowerCase(),
  }))
  return index
}

function show() {
  const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean)
  let count = 0
  for (const { article, link, words } of operations()) {
    const isHidden = !wanted.every((word) => words.includes(word))
    article.hidden = isHidden
    if (link) link.hidden = isHidden
    if (!isHidden) count += 1
  }
  for (const group of $$('.group, .tag')) group.hidden = !$('li:not([hidden]), .operation:not([hidden])', group)
  for (const start of $$('.start')) start.hidden = wanted.length > 0
  matches.textContent = wanted.length === 0 ? '' : `${count} of ${operations().length}`
}

search.addEventListener('input', show)
search.addEventListener('keydown', ({ key }) => {
  if (key !== 'Escape') return
  search.value = ''
  show()
})
document.addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.target.closest('input, textarea, select')) return
  event.preventDefault()
  search.focus()
})
// A link to an operation must work although the search hides it.
addEventListener('hashchange', () => {
  const target = document.getElementById(location.hash.slice(1))
  if (!target?.closest('[hidden]')) return
  search.value = ''
  show()
  target.scrollIntoView()
})

// Try it

const tokenField = $('#token')
tokenField.addEventListener('input', () => {
  token = tokenField.value.trim()
})

let loading

/** The document has the parameters and examples of every operation. */
function loadDocument() {
  loading ??= fetch('/openapi.json', { credentials: 'omit' }).then((response) => response.json())
  return loading
}

function findOperation(api, id) {
  for (const [path, item] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(item)) {
      if (operation.operationId === id) return { path, method, operation }
    }
  }
  throw new Error(`the document has no operation ${id}`)
}

function resolve(api, part) {
  if (!part.$ref) return part
  const [section, name] = part.$ref.split('/').slice(-2)
  return api.components[section][name]
}

function parameterField({ name, in: place, required }) {
  const input = element('input', { type: 'text', required, spellcheck: false, autocomplete: 'off' })
  const label = element('label', {}, element('span', { textContent: `${name} (${place})` }), input)
  return { name, place, input, label }
}

/** Longer responses, and streams that do not end, are cut. */
const maxShown = 200_000

async function readBody(response, output) {
  const reader = response.body?.getReader()
  const decoder = new TextDecoder()
  let length = 0
  while (reader) {
    const { done, value } = await reader.read()
    if (done) return
    output.append(decoder.decode(value, { stream: true }))
    length += value.length
    if (length <= maxShown) continue
    output.append('\n…')
    await reader.cancel()
    return
  }
}

function prettify(output) {
  try {
    output.textContent = JSON.stringify(JSON.parse(output.textContent), null, 2)
  } catch {
    // It is not JSON, or incomplete.
  }
}

function urlOf(path, fields) {
  const filled = path.replace(/\{(\w+)\}/g, (_, name) => {
    const field = fields.find((one) => one.place === 'path' && one.name === name)
    return encodeURIComponent(field.input.value)
  })
  const query = new URLSearchParams()
  for (const { name, place, input } of fields)
    if (place === 'query' && input.value !== '') query.append(name, input.value)
  return query.size > 0 ? `${filled}?${query}` : filled
}

function buildForm(api, id) {
  const { path, method, operation } = findOperation(api, id)
  const fields = (operation.parameters ?? []).map((part) => parameterField(resolve(api, part)))
  const json = operation.requestBody?.content['application/json']
  const body =
    json && element('textarea', { rows: 8, spellcheck: false, value: JSON.stringify(json.example ?? {}, null, 2) })
  const raw = operation.requestBody && !json && element('textarea', { rows: 4, spellcheck: false })
  const send = element('button', { type: 'submit', textContent: `Send ${method.toUpperCase()}` })
  const stop = element('button', { type: 'button', textContent: 'Stop', hidden: true })
  const hint = element('p', { className: 'hint', textContent: method === 'get' ? '' : 'This request is real.' })
  const status = element('p', { className: 'outcome' })
  status.setAttribute('role', 'status')
  const output = element('pre', { tabIndex: 0, hidden: true })
  const form = element('form', { className: 'request' }, ...fields.map(({ label }) => label))
  if (body ?? raw) form.append(element('label', {}, element('span', { textContent: 'body' }), body ?? raw))
  form.append(hint, element('div', { className: 'actions' }, send, stop), status, output)

  async function run(signal) {
    const headers = {
      ...(token && { authorization: `Bearer ${token}` }),
      ...(body && { 'content-type': 'application/json' }),
    }
    for (const { name, place, input } of fields)
      if (place === 'header' && input.value !== '') headers[name] = input.value
    const text = (body ?? raw)?.value
    const started = performance.now()
    const response = await fetch(urlOf(path, fields), {
      method: method.toUpperCase(),
      headers,
      ...(text === undefined ? {} : { body: text }),
      credentials: 'omit',
      redirect: 'error',
      cache: 'no-store',
      referrerPolicy: 'no-referrer',
      signal,
    })
    const milliseconds = Math.round(performance.now() - started)
    status.textContent = `${response.status} ${response.statusText} · ${milliseconds} ms · ${response.headers.get('fly-request-id') ?? ''}`
    output.hidden = false
    await readBody(response, output)
    prettify(output)
  }

  form.addEventListener('submit', async (event) => {
    event.preventDefault()
    const controller = new AbortController()
    stop.onclick = () => controller.abort()
    stop.hidden = false
    send.disabled = true
    output.textContent = ''
    status.textContent = 'Sending …'
    try {
      await run(controller.signal)
    } catch (error) {
      status.textContent = controller.signal.aborted
        ? `${status.textContent} · stopped`
        : `No response: ${error.message}`
    } finally {
      stop.hidden = true
      send.disabled = false
    }
  })
  return form
}

for (const details of $$('details.try')) {
  details.hidden = false
  details.addEventListener('toggle', async () => {
    if (!details.open || $('form', details)) return
    const form = buildForm(await loadDocument(), details.closest('.operation').dataset.id)
    if (!$('form', details)) details.append(form)
  })
}
for (const part of $$('.needs-script')) part.hidden = false
