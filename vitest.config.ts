import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    globalSetup: ['test/support/postgres.ts'],
    testTimeout: 30_000,
    hookTimeout: 60_000,
    // Files wait for processes and databases more than they compute, so one more of them than two cores runs at once.
    maxWorkers: 3,
  },
})
