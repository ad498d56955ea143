// Every operation has the same six errors and most share their parameters. The document states each of them once, as a
// component, and refers to it; without this it would be twice as large.
import { STATUS_CODES } from 'node:http'

type Json = Record<string, unknown>
type Paths = Record<string, Record<string, Json>>

/** The names of components by the text of their description; the others are named after the description itself. */
export type ComponentNames = Readonly<Record<string, string>>

export interface SharedParts {
  paths: Paths
  responses: Json
  parameters: Json
}

/** Moves responses and parameters that occur more than once into components and leaves references to them. */
export function shareRepeated(paths: Paths, names: ComponentNames): SharedParts {
  const operations = Object.values(paths).flatMap((item) => Object.values(item))
  const responses = new Components('responses')
  const parameters = new Components('parameters')
  for (const operation of operations) {
    for (const [status, response] of responsesOf(operation)) {
      // Other successful responses have a schema, which is a component itself where it is large.
      if (status >= '4' || !response.content) responses.add(response, responseName(status, response, names))
    }
    for (const parameter of parametersOf(operation)) parameters.add(parameter, parameterName(parameter))
  }
  const shared = mapOperations(paths, (operation) => ({
    ...operation,
    ...(operation.parameters ? { parameters: parametersOf(operation).map((one) => parameters.refer(one)) } : {}),
    responses: Object.fromEntries(
      responsesOf(operation).map(([status, response]) => [status, responses.refer(response)]),
    ),
  }))
  return { paths: shared, responses: responses.repeated(), parameters: parameters.repeated() }
}

class Components {
  readonly #section: string
  readonly #counts = new Map<string, number>()
  readonly #names = new Map<string, string>()

  constructor(section: string) {
    this.#section = section
  }

  add(value: Json, name: string): void {
    const text = JSON.stringify(value)
    this.#counts.set(text, (this.#counts.get(text) ?? 0) + 1)
    if (!this.#names.has(text)) this.#names.set(text, name)
  }

  refer(value: Json): Json {
    const text = JSON.stringify(value)
    return this.#isRepeated(text) ? { $ref: `#/components/${this.#section}/${this.#uniqueName(text)}` } : value
  }

  repeated(): Json {
    const texts = [...this.#names.keys()].filter((text) => this.#isRepeated(text))
    return Object.fromEntries(texts.map((text) => [this.#uniqueName(text), JSON.parse(text)]))
  }

  #isRepeated(text: string): boolean {
    return (this.#counts.get(text) ?? 0) > 1
  }

  /** Parts that would have the same name are numbered in the order of their first occurrence. */
  #uniqueName(text: string): string {
    const name = this.#names.get(text)!
    const sameName = [...this.#names].filter(([other, its]) => its === name && this.#isRepeated(other))
    const position = sameName.findIndex(([other]) => other === text)
    return position === 0 ? name : `${name}-${position + 1}`
  }
}

function responsesOf(operation: Json): [string, Json][] {
  return Object.entries(operation.responses as Record<string, Json>)
}

function parametersOf(operation: Json): Json[] {
  return (operation.parameters ?? []) as Json[]
}

function mapOperations(paths: Paths, change: (operation: Json) => Json): Paths {
  return Object.fromEntries(
    Object.entries(paths).map(([path, item]) => [
      path,
      Object.fromEntries(Object.entries(item).map(([method, operation]) => [method, change(operation)])),
    ]),
  )
}

function responseName(status: string, { description }: Json, names: ComponentNames): string {
  const reason = (STATUS_CODES[status] ?? status).replaceAll(/[^A-Za-z]/g, '')
  return names[String(description)] ?? `${reason}-${slug(String(description))}`
}

function parameterName({ name, in: place }: Json): string {
  return `${place}-${name}`
}

const maxSlugLength = 60

function slug(text: string): string {
  const words = text.toLowerCase().match(/[a-z0-9]+/g) ?? []
  const kept = words.filter((_, at) => words.slice(0, at + 1).join('-').length <= maxSlugLength)
  return kept.join('-')
}
