import { BerthError, notFound } from '../../model/errors.ts'

interface Entry {
  pattern: RegExp
  methods: string[]
}

/** The methods of every path of a listener. It decides between "no such path" and "not with this method". */
export class MethodTable {
  readonly #entries = new Map<string, Entry>()

  /** `url` has its parameters in the notation of the router, such as `:name`. */
  add(url: string, method: string): void {
    const known = this.#entries.get(url)
    if (known) known.methods.push(method)
    else this.#entries.set(url, { pattern: patternOf(url), methods: [method] })
  }

  /** A path without parameters has priority, as in the router. */
  #find(path: string): string[] | undefined {
    const exact = this.#entries.get(path)
    if (exact) return exact.methods
    for (const { pattern, methods } of this.#entries.values()) if (pattern.test(path)) return methods
    return undefined
  }

  refusalOf(method: string, path: string): BerthError {
    const methods = this.#find(path)
    if (!methods) return notFound(`no such path: ${path}`)
    const allow = methods.join(', ')
    return new BerthError('method_not_allowed', `${method} is not allowed here; use ${allow}`, { allow })
  }
}

function patternOf(url: string): RegExp {
  return new RegExp(`^${url.replaceAll('.', '\\.').replaceAll(/:\w+/g, '[^/]+')}$`)
}
