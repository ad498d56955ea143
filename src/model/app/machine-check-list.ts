import type { MachineCheck, MachineConfig } from './machine-config.ts'

export interface NamedCheck {
  name: string
  check: MachineCheck
  /** Whether the edge routes requests to the machine only while the check passes. */
  gatesTraffic: boolean
  /** Undefined for an exec check. */
  port: number | undefined
}

/** Lists the machine's own checks and those of its services, whose generated names identify service and port. */
export function listChecks(config: Pick<MachineConfig, 'checks' | 'services'>): NamedCheck[] {
  const own = Object.entries(config.checks ?? {}).map(([name, check]) => {
    return { name, check, gatesTraffic: check.kind === 'readiness', port: check.port }
  })
  const ofServices = (config.services ?? []).flatMap((service, at) =>
    (service.checks ?? []).map((check, nth) => {
      const port = check.port ?? service.internal_port
      const number = String(at).padStart(2, '0')
      const name = `servicecheck-${number}-${check.type}-${port}${nth === 0 ? '' : `-${nth}`}`
      return { name, check, gatesTraffic: check.kind !== 'informational', port }
    }),
  )
  return [...own, ...ofServices]
}

export function checkNames(config: MachineConfig): string[] {
  return [...new Set(listChecks(config).map(({ name }) => name))]
}
