/** Collects cleanup functions, so that a failure or Ctrl-C leaves nothing behind. */
export interface Scope {
  defer(undo: () => Promise<void> | void): void
  /** Runs the cleanup functions in reverse order. A second call waits for the first. */
  close(): Promise<void>
}

export function openScope(): Scope {
  const undos: (() => Promise<void> | void)[] = []
  let closing: Promise<void> | undefined

  // Functions are taken one by one, so that those added during the cleanup run too.
  async function undoAll(): Promise<void> {
    const failures: unknown[] = []
    for (let undo = undos.pop(); undo; undo = undos.pop()) {
      await Promise.resolve()
        .then(undo)
        .catch((error) => failures.push(error))
    }
    if (failures.length > 0) throw new AggregateError(failures, 'cleanup failed')
  }

  return {
    defer: (undo) => undos.push(undo),
    close: () => (closing ??= undoAll()),
  }
}
