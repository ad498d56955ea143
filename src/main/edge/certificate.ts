import { ensureServerCertificate } from '../../drivers/host/certificate.ts'
import type { Home } from '../../drivers/host/home.ts'
import type { Config } from '../config.ts'
import type { ControlPlane } from '../control-plane.ts'

interface CertificateContext {
  config: Pick<Config, 'domain' | 'sandboxDomain'>
  home: Home
  log: Pick<ControlPlane['log'], 'warn'>
}

interface RenewalContext extends CertificateContext {
  supervisor: Pick<ControlPlane['supervisor'], 'signalService'>
}

const service = 'edge'
const renewalIntervalMs = 86_400_000

/** Creates or renews the certificate for host names that have none of their own. */
export async function ensureOwnCertificate({ config, home, log }: CertificateContext) {
  const directory = `${home.path}/edge-tls`
  const hosts = [`*.${config.domain}`, config.domain, `*.${config.sandboxDomain}`, config.sandboxDomain]
  try {
    const isNew = await ensureServerCertificate({ home, directory, name: 'Berth edge', hosts })
    return { isNew, files: { certFile: `${directory}/server.crt`, keyFile: `${directory}/server.key` } }
  } catch (err) {
    log.warn({ err }, 'creating the certificate of the edge failed; TLS is off')
    return { isNew: false, files: null }
  }
}

/** Checks every day whether the certificate has to be renewed, as the control plane may run for years. */
export function startCertificateRenewal(controlPlane: RenewalContext): { stop(): void } {
  const timer = setInterval(() => {
    renewCertificate(controlPlane).catch((err) =>
      controlPlane.log.warn({ err }, 'renewing the certificate of the edge failed'),
    )
  }, renewalIntervalMs)
  return { stop: () => clearInterval(timer) }
}

/** Does not wait until the edge uses the new certificate, as it replaces its workers in the background. */
export async function renewCertificate(controlPlane: RenewalContext): Promise<void> {
  const { isNew } = await ensureOwnCertificate(controlPlane)
  if (isNew) await controlPlane.supervisor.signalService(service, 'SIGHUP')
}
