import { createSecureContext, type SecureContext } from 'node:tls'
import { unseal } from '../../model/seal.ts'
import type { StoredCertificate } from '../../store/app/route.ts'
import { normalizeServerName } from './client-hello.ts'

/** Finds the certificates of the app that a host name belongs to. */
export interface CertificateSource {
  find(host: string): { certificates: StoredCertificate[] } | undefined
}

const maxCachedContexts = 2_000

/** The certificates of apps' own host names, ready for handshakes. */
export class Certificates {
  private readonly apps: CertificateSource
  private readonly key: Buffer
  private readonly onError: (error: unknown) => void
  /** Cached because creating a context costs more than a handshake. */
  private readonly contexts = new Map<string, SecureContext | undefined>()

  constructor(apps: CertificateSource, key: Buffer, onError: (error: unknown) => void) {
    this.apps = apps
    this.key = key
    this.onError = onError
  }

  find(servername: string): SecureContext | undefined {
    const host = normalizeServerName(servername)
    const certificates = this.apps.find(host)?.certificates
    if (!certificates?.length) return undefined
    const wildcard = `*${host.slice(Math.max(host.indexOf('.'), 0))}`
    const found =
      certificates.find(({ hostname }) => hostname === host) ??
      certificates.find(({ hostname }) => hostname === wildcard)
    return found && this.contextFor(found)
  }

  private contextFor({ hostname, fullchain, privateKey }: StoredCertificate): SecureContext | undefined {
    const name = `${hostname} ${privateKey}` // each change of the certificate encrypts the key anew
    if (this.contexts.has(name)) return this.contexts.get(name)
    let context: SecureContext | undefined
    try {
      const key = unseal(this.key, Buffer.from(privateKey, 'base64'))
      context = createSecureContext({ cert: fullchain, key })
    } catch (error) {
      this.onError(new Error(`load the certificate of ${hostname}`, { cause: error }))
    }
    if (this.contexts.size >= maxCachedContexts) this.contexts.clear()
    this.contexts.set(name, context)
    return context
  }
}
