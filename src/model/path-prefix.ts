/** Matches a path and everything below it, optionally on one host only. */
export interface PathPrefix {
  /** Lowercase; empty matches every host. */
  host: string
  /** Ends with a slash. */
  path: string
}

// A path contains neither a query nor a fragment.
const pattern = /^(?<host>[a-z0-9.-]*)(?<path>\/[\x21\x22\x24-\x3e\x40-\x7e]*)$/i

/** Parses `[host]/path`, with an optional star at the end; undefined for anything else. */
export function parsePathPrefix(text: string): PathPrefix | undefined {
  const found = pattern.exec(text)?.groups
  if (!found) return undefined
  return { host: found.host!.toLowerCase(), path: found.path!.replace(/\*$/, '').replace(/\/?$/, '/') }
}

/** Whether a request target is at or below the prefix. */
export function isBelow(prefix: string, target: string): boolean {
  const path = target.split('?', 1)[0]!
  return path.startsWith(prefix) || `${path}/` === prefix
}
