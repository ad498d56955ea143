import type { MachineCheck, MachineConfig } from './machine-config.ts'

export interface NamedCheck {
  name: string
  check: MachineCheck
  /** Requests are led to the machine only while it passes. */
  isGate: boolean
  /** Where it asks; undefined for a command. */
  port: number | undefined
}

/** Its own, and those of its services, whose names say which. */
export function listChecks(config: Pick<MachineConfig, 'checks' | 'services'>): NamedCheck[] {
  const own = Object.entries(config.checks ?? {}).map(([name, check]) => {
    return { name, check, isGate: check.kind === 'readiness', port: check.port }
  })
  const ofServices = (config.services ?? []).flatMap((service, at) =>
    (service.checks ?? []).map((check, nth) => {
      const port = check.port ?? service.internal_port
      const number = String(at).padStart(2, '0')
      const name = `servicecheck-${number}-${check.type}-${port}${nth === 0 ? '' : `-${nth}`}`
      return { name, check, isGate: check.kind !== 'informational', port }
    }),
  )
  return [...own, ...ofServices]
}

export function checkNames(config: MachineConfig): string[] {
  return [...new Set(listChecks(config).map(({ name }) => name))]
}
