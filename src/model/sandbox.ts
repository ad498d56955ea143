import { type Static, Type } from 'typebox'
import { defineStates, type State } from './states.ts'
import type { Micros } from './time.ts'

export const sandboxStates = defineStates({
  cold: { commands: { use: 'running', delete: 'deleting' } },
  running: { commands: { delete: 'deleting' }, keeps: 'up' },
  deleting: { outcomes: { gone: 'deleted' } },
  deleted: {},
})

export interface Sandbox {
  id: string
  orgId: string
  name: string
  /** Null when it has been removed. */
  slot: number | null
  state: State<typeof sandboxStates>
  stateSince: Micros
  urlAuth: 'sprite' | 'public'
  privateAccess: 'admins' | 'org_users'
  labels: string[]
  /** Variables of every command and service. */
  environment: Record<string, string>
  memoryMb: number
  cpus: number
  storageGb: number
  networkPolicy: NetworkPolicy
  createdAt: Micros
  updatedAt: Micros
  lastRunningAt: Micros | null
}

export interface SandboxDetails extends Sandbox {
  orgSlug: string
}

export type NetworkRule = { domain: string; action: 'allow' | 'deny' } | { include: 'defaults' }
export interface NetworkPolicy {
  rules: NetworkRule[]
}

export const sandboxNamePattern = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/

/** Where commands start and what HOME is, inside. */
export const sandboxHome = '/home/sprite'

/** How many sandboxes a home can hold: each has a range of 65,536 uids. */
export const maxSandboxes = 1023

export const SandboxStatus = Type.Enum(['cold', 'warm', 'running'], {
  description: '`cold` until its first use, then `running`.',
})
export type SandboxStatus = Static<typeof SandboxStatus>
