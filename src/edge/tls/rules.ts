import type { SecureVersion } from 'node:tls'
import type { MachinePort } from '../../model/app/machine-config.ts'

/** The parameters of TLS negotiation on a port. */
export interface TlsRules {
  /** Protocols offered by ALPN, the preferred one first; empty turns ALPN off. */
  alpn: string[]
  minVersion: SecureVersion
  maxVersion: SecureVersion
}

const supportedVersions = ['TLSv1.2', 'TLSv1.3'] as const
const maxProtocols = 16

export const webTlsRules: TlsRules = parseTlsRules(undefined, true)

/** Ignores versions and protocol names that are not supported; where none is left, the defaults apply. */
export function parseTlsRules(options: MachinePort['tls_options'], isHttp: boolean): TlsRules {
  const alpn = options?.alpn?.filter((name) => name !== '' && Buffer.byteLength(name) <= 255).slice(0, maxProtocols)
  const versions = supportedVersions.filter((version) => options?.versions?.includes(version))
  return {
    alpn: alpn?.length ? alpn : isHttp ? ['h2', 'http/1.1'] : [],
    minVersion: versions[0] ?? supportedVersions[0],
    maxVersion: versions.at(-1) ?? supportedVersions[1],
  }
}
