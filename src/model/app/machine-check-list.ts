import type { ContainerHealthcheck, MachineContainer } from './container/config.ts'
import type { MachineCheck, MachineConfig } from './machine-config.ts'

export interface NamedCheck {
  name: string
  check: MachineCheck
  /** Whether the edge routes requests to the machine only while the check passes. */
  gatesTraffic: boolean
  /** Undefined for an exec check. */
  port: number | undefined
  /** Set for health checks of containers, whose results decide about the health of the container. */
  container?: { name: string; successThreshold: number; failureThreshold: number }
}

const defaultThresholds = { success: 1, failure: 3 }

/**
 * Lists the machine's own checks, those of its services, whose generated names identify service and port, and those of its
 * containers.
 */
export function listChecks(config: Pick<MachineConfig, 'checks' | 'services' | 'containers'>): NamedCheck[] {
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
  const ofContainers = (config.containers ?? []).flatMap((container) =>
    (container.healthchecks ?? []).map((check) => containerCheck(container, check)),
  )
  return [...own, ...ofServices, ...ofContainers]
}

function containerCheck({ name }: MachineContainer, health: ContainerHealthcheck): NamedCheck {
  const { interval, timeout, grace_period, http, tcp, exec } = health
  const seconds = (value: number | undefined) => (value === undefined ? undefined : `${value}s`)
  const { scheme, port = tcp?.port, ...request } = http ?? {}
  const check = {
    type: http ? 'http' : tcp ? 'tcp' : 'exec',
    ...request,
    protocol: scheme,
    command: exec?.command,
    interval: seconds(interval || undefined),
    timeout: seconds(timeout || undefined),
    grace_period: seconds(grace_period),
  }
  return {
    name: `${name}/${health.name}`,
    check: Object.fromEntries(Object.entries(check).filter(([, value]) => value !== undefined)) as MachineCheck,
    gatesTraffic: false,
    port,
    container: {
      name,
      successThreshold: health.success_threshold || defaultThresholds.success,
      failureThreshold: health.failure_threshold || defaultThresholds.failure,
    },
  }
}

export function checkNames(config: MachineConfig): string[] {
  return [...new Set(listChecks(config).map(({ name }) => name))]
}
