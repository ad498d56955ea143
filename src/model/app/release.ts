import type { Micros } from '../time.ts'

export const deploymentStrategies = ['BLUEGREEN', 'CANARY', 'IMMEDIATE', 'ROLLING', 'ROLLING_ONE', 'SIMPLE'] as const
export type DeploymentStrategy = (typeof deploymentStrategies)[number]

/** What a client that deployed an app noted down. The platform only keeps it. */
export interface Release {
  id: string
  /** Counts up from 1 in each app. */
  version: number
  /** In the client's words: `pending`, `running`, `complete`, `failed`, …. */
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

/** Of an app; older ones are forgotten. */
export const keptReleases = 100
export const maxDefinitionBytes = 65_536
export const maxImageLength = 4096

export function isInProgress({ status }: Pick<Release, 'status'>): boolean {
  return status === 'pending' || status === 'running'
}
