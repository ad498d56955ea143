/** Resolves on the first SIGINT or SIGTERM. A second one exits the process immediately. */
export function stopSignal(onStop: () => void = () => undefined): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    let isStopping = false
    for (const signal of ['SIGINT', 'SIGTERM'] as const) {
      process.on(signal, () => {
        if (isStopping) process.exit(130)
        isStopping = true
        onStop()
        resolve(signal)
      })
    }
  })
}
