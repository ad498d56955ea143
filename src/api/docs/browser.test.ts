import { Window } from 'happy-dom'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { openApiDocument } from '../http/openapi.ts'
import { clusterRoutes } from '../postgres/cluster.ts'
import { withExamples } from './document.ts'
import { docsPage } from './page.ts'

const api = openApiDocument('platform', clusterRoutes)
const html = docsPage(api)
const sent: { url: string; options: RequestInit & { headers?: Record<string, string> } }[] = []
let window: Window

type Loose = ReturnType<typeof JSON.parse>

beforeEach(async () => {
  sent.length = 0
  window = new Window({
    url: 'https://berth.test/docs',
    settings: { enableJavaScriptEvaluation: true, suppressInsecureJavaScriptEnvironmentWarning: true },
  })
  const loose = window as Loose
  loose.fetch = async (url: string, options: Loose) => {
    if (url === '/openapi.json') return { json: async () => withExamples(api) }
    sent.push({ url, options })
    return new Response('{"data":{"id":"<b>x</b>"}}', { status: 201, headers: { 'fly-request-id': 'id-1' } })
  }
  const [page, script] = html.split(/<script type="module">|<\/script>/)
  window.document.write(page!)
  // A module has a scope of its own.
  window.eval(`(() => {${script}})()`)
})

afterEach(() => window.happyDOM.close())

const find = (selector: string) => window.document.querySelector(selector) as Loose

function enter(selector: string, value: string): void {
  find(selector).value = value
  find(selector).dispatchEvent(new window.Event('input'))
}

async function openForm(id: string): Promise<Loose> {
  const details = find(`#${id} details.try`)
  details.open = true
  details.dispatchEvent(new window.Event('toggle'))
  await vi.waitFor(() => expect(details.querySelector('form')).not.toBeNull())
  return details.querySelector('form')
}

async function submit(form: Loose): Promise<string> {
  form.dispatchEvent(new window.Event('submit', { cancelable: true }))
  await vi.waitFor(() => expect(form.querySelector('pre').textContent).toContain('}'))
  return form.querySelector('.outcome').textContent
}

test('the search hides operations that do not contain every word', () => {
  enter('#search', 'create postgres')
  expect(find('#createCluster').hidden).toBe(false)
  expect(find('#deleteCluster').hidden).toBe(true)
  expect(find('.side a[href="#deleteCluster"]').closest('li').hidden).toBe(true)
  expect(find('#matches').textContent).toMatch(new RegExp(`^[1-9]\\d* of ${clusterRoutes.length}$`))
  enter('#search', 'no such operation')
  expect(find('.tag').hidden).toBe(true)
  enter('#search', '')
  expect(find('#deleteCluster').hidden).toBe(false)
  expect(find('#matches').textContent).toBe('')
})

test('the examples show the address of the page', () => {
  expect(find('.origin').textContent).toBe('https://berth.test')
})

test('a request is sent with the token in a header, and its response is shown as text', async () => {
  enter('#token', ' berth_mine ')
  const form = await openForm('createCluster')
  expect(JSON.parse(form.querySelector('textarea').value)).toMatchObject({ org_slug: 'personal' })
  form.querySelector('textarea').value = '{"org_slug":"acme"}'
  expect(await submit(form)).toMatch(/^201 .* id-1$/)
  const { url, options } = sent[0]!
  expect([url, options.method, options.body]).toEqual(['/v1/postgres', 'POST', '{"org_slug":"acme"}'])
  expect(options.headers).toEqual({ authorization: 'Bearer berth_mine', 'content-type': 'application/json' })
  expect(options).toMatchObject({ credentials: 'omit', redirect: 'error', referrerPolicy: 'no-referrer' })
  expect(form.querySelector('pre b')).toBeNull()
  expect(window.sessionStorage.length + window.localStorage.length).toBe(0)
  expect(window.location.href).toBe('https://berth.test/docs')
})

test('parameters go where they belong', async () => {
  const form = await openForm('listClusters')
  form.querySelector('input').value = 'a&b'
  await submit(form)
  expect(sent[0]!.url).toBe('/v1/postgres?org_slug=a%26b')
  const other = await openForm('deleteCluster')
  other.querySelector('input').value = '../x'
  await submit(other)
  expect(sent[1]!.url).toBe('/v1/postgres/..%2Fx')
  expect(sent[1]!.options.headers).not.toHaveProperty('authorization')
})
