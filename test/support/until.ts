/** Polls a condition every few milliseconds until it holds. The timeout is generous, because the host may be busy. */
export async function until(holds: () => boolean | Promise<boolean>, seconds = 45): Promise<void> {
  const deadline = performance.now() + seconds * 1000
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`condition not met within ${seconds} s: ${holds}`)
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}
