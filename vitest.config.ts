import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    globalSetup: ['test/support/postgres.ts'],
    // They say when something hangs, and nothing about speed: what is green comes nowhere near them on a busy machine.
    testTimeout: 90_000,
    hookTimeout: 180_000,
    // Files wait for processes and databases more than they compute, so one more of them than two cores runs at once.
    maxWorkers: 3,
  },
})
