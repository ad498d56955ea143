// What a tenant tries with SQL, and how it ends.

/**
 * Statements that a tenant runs one after another, up to the first error. Words in braces stand for values of the
 * platform under attack, such as `{outside}` for a directory that everyone may write to.
 */
export interface Attempt {
  sql: string[]
  /** The SQLSTATEs with which PostgreSQL may refuse; `ok` where the statements may succeed, because they do no harm. */
  ends: string
  /** How it ends for an admin, where that differs. */
  admin?: string
  /** Statements of an admin that clean up. */
  undo?: string
}

interface Ends {
  admin?: string
  undo?: string
}

/** Attempts that all end in the same way. */
export function each(ends: string, statements: (string | string[])[], more: Ends = {}): Attempt[] {
  return statements.map((sql) => ({ sql: [sql].flat(), ends, ...more }))
}

/** PostgreSQL says that the user lacks a privilege. */
export const denied = '42501'

/** Text in a result or in an error that proves an escape. */
export const proofs = [
  // The canary file and well-known files of every host.
  /canary-content/,
  /root:[x*]:0:0/,
  /BEGIN [A-Z ]*PRIVATE KEY/,
  /SCRAM-SHA-256\$\d+:/,
  // A server that a tenant reached as the superuser did not ask for a password, or would have loaded a library.
  /server does not request a password|authentication method must be changed/,
  /may only connect using credentials they provide|match target server's authentication method/,
  /could not access file|could not load library|invalid ELF header/,
  /uid=\d+/,
]

export function describeAttempt({ sql }: Attempt): string {
  return sql.join('; ').replace(/\s+/g, ' ').slice(0, 200)
}
