import { expect } from 'vitest'

/**
 * Asserts that a condition becomes true, by polling every few milliseconds instead of sleeping. The timeout only ends
 * tests that hang; it is far above what a busy host needs.
 */
export async function until(holds: () => boolean | Promise<boolean>, seconds = 45): Promise<void> {
  const deadline = performance.now() + seconds * 1000
  let held = await holds()
  while (!held && performance.now() <= deadline) {
    await new Promise((resolve) => setTimeout(resolve, 10))
    held = await holds()
  }
  expect(held, `not true after ${seconds} s: ${holds}`).toBe(true)
}
