export interface Attempt {
  name: string
  code: string
  /** What the code returns if the attempt fails as it should. */
  expected: RegExp
  /** True for what uses up a resource, and is tried by itself. */
  alone?: boolean
}

export const refusal = /^refused /
/** EPERM of a missing capability or of the filter, or ENOSYS of the filter: no argument was looked at. */
export const unheard = /^refused (1|38)$/

export const row = (name: string, code: string, expected = refusal): Attempt => ({ name, code, expected })
export const rows = (names: string[], make: (name: string) => Attempt): Attempt[] => names.map(make)
