/** Gathers what has to be undone, so that a failure and Ctrl-C leave as little behind as a good end. */
export interface Scope {
  defer(undo: () => Promise<void> | void): void
  /** Undoes everything, last first. A second call waits for the first. */
  close(): Promise<void>
}

export function openScope(): Scope {
  const undos: (() => Promise<void> | void)[] = []
  let closing: Promise<void> | undefined

  // Taken one by one, so that what is made meanwhile goes the same way.
  async function undoAll(): Promise<void> {
    const failures: unknown[] = []
    for (let undo = undos.pop(); undo; undo = undos.pop()) {
      await Promise.resolve()
        .then(undo)
        .catch((error) => failures.push(error))
    }
    if (failures.length > 0) throw new AggregateError(failures, 'cleaning up')
  }

  return {
    defer: (undo) => undos.push(undo),
    close: () => (closing ??= undoAll()),
  }
}
