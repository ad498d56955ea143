import { defineConfig } from 'vitest/config'
import { SummaryReporter } from './test/support/setup/reporter.ts'
import { LongestFirst } from './test/support/setup/sequencer.ts'

const server = 'test/support/setup/server.ts'
const preparedHome = 'test/support/setup/prepared-home.ts'

/** Each kind of test sets up only what it needs: unit tests and rules start nothing. */
const projects = [
  { name: 'unit', include: ['src/**/*.test.ts'], globalSetup: [] },
  { name: 'rules', include: ['test/rules/**/*.test.ts'], globalSetup: [] },
  { name: 'integration', include: ['test/integration/**/*.test.ts'], globalSetup: [server] },
  { name: 'edge', include: ['test/edge/**/*.test.ts'], globalSetup: [server] },
  { name: 'drivers', include: ['test/drivers/**/*.test.ts'], globalSetup: [server, preparedHome] },
  { name: 'e2e', include: ['test/e2e/**/*.test.ts'], globalSetup: [server, preparedHome] },
]

export default defineConfig({
  test: {
    projects: projects.map((project) => ({ extends: true, test: project })),
    reporters: ['default', new SummaryReporter()],
    sequence: { sequencer: LongestFirst },
    expect: { requireAssertions: true },
    // These limits only end tests that hang: passing tests stay far below them, also on a busy host.
    testTimeout: 90_000,
    hookTimeout: 180_000,
    // Test files wait for processes and databases more than they compute, so one more than the two cores can run.
    maxWorkers: 3,
  },
})
