/** Where a rule about requests holds: at a path and everything below it, perhaps of one host alone. */
export interface PathPrefix {
  /** In lowercase; empty: every host. */
  host: string
  /** Ends with a slash. */
  path: string
}

// Neither a query nor a fragment is part of a path.
const pattern = /^(?<host>[a-z0-9.-]*)(?<path>\/[\x21\x22\x24-\x3e\x40-\x7e]*)$/i

/** `[host]/path`, with or without a star at its end. Undefined when it is something else. */
export function parsePathPrefix(text: string): PathPrefix | undefined {
  const found = pattern.exec(text)?.groups
  if (!found) return undefined
  return { host: found.host!.toLowerCase(), path: found.path!.replace(/\*$/, '').replace(/\/?$/, '/') }
}

/** Whether the target of a request lies there. */
export function isBelow(prefix: string, target: string): boolean {
  const path = target.split('?', 1)[0]!
  return path.startsWith(prefix) || `${path}/` === prefix
}
