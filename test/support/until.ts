/**
 * Waits for a state, not for a time: asks again every few milliseconds until it holds. The seconds only say when it is
 * taken for hanging, however busy the machine is.
 */
export async function until(holds: () => boolean | Promise<boolean>, seconds = 45): Promise<void> {
  const deadline = performance.now() + seconds * 1000
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`not so after ${seconds} s: ${holds}`)
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}
