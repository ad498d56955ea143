import type { Micros } from '../time.ts'

export const deploymentStrategies = ['BLUEGREEN', 'CANARY', 'IMMEDIATE', 'ROLLING', 'ROLLING_ONE', 'SIMPLE'] as const
export type DeploymentStrategy = (typeof deploymentStrategies)[number]

/** A deployment as recorded by the deploying client. The platform only stores it. */
export interface Release {
  id: string
  /** Starts at 1 in each app. */
  version: number
  /** Set by the client: `pending`, `running`, `complete`, `failed`, … */
  status: string
  image: string
  strategy: DeploymentStrategy
  definition: unknown
  createdBy: string
  createdAt: Micros
  updatedAt: Micros
}

export const releaseStatusPattern = /^[a-z][a-z_-]{0,31}$/
export const releaseIdPattern = /^[a-z0-9]{16}$/

/** Per app; older releases are deleted. */
export const keptReleases = 100
export const maxDefinitionBytes = 65_536
export const maxImageLength = 4096

/** Whether the definition is a configuration of the whole app, which names the app. Clients may record none or other things. */
export function definesApp({ definition }: Pick<Release, 'definition'>): boolean {
  return typeof (definition as { app?: unknown } | null)?.app === 'string'
}

export function isInProgress({ status }: Pick<Release, 'status'>): boolean {
  return status === 'pending' || status === 'running'
}
