import { createSecureContext, type SecureContext } from 'node:tls'
import { unseal } from '../../model/seal.ts'
import type { StoredCertificate } from '../../store/app/route.ts'
import type { AppTable } from '../routing/route.ts'

const maxRemembered = 2_000

/** What proves the host names of apps that have certificates of their own. */
export class Certificates {
  private readonly apps: AppTable
  private readonly key: Buffer
  private readonly onError: (error: unknown) => void
  /** Making one costs more than a handshake. */
  private readonly contexts = new Map<string, SecureContext | undefined>()

  constructor(apps: AppTable, key: Buffer, onError: (error: unknown) => void) {
    this.apps = apps
    this.key = key
    this.onError = onError
  }

  find(servername: string): SecureContext | undefined {
    const host = servername.toLowerCase()
    const certificates = this.apps.find(host)?.certificates
    if (!certificates?.length) return undefined
    const wildcard = `*${host.slice(Math.max(host.indexOf('.'), 0))}`
    const found =
      certificates.find(({ hostname }) => hostname === host) ??
      certificates.find(({ hostname }) => hostname === wildcard)
    return found && this.contextOf(found)
  }

  private contextOf({ hostname, fullchain, privateKey }: StoredCertificate): SecureContext | undefined {
    const name = `${hostname} ${privateKey}` // encrypted anew with each change
    if (this.contexts.has(name)) return this.contexts.get(name)
    let context: SecureContext | undefined
    try {
      const key = unseal(this.key, Buffer.from(privateKey, 'base64'))
      context = createSecureContext({ cert: fullchain, key })
    } catch (error) {
      this.onError(new Error(`use the certificate of ${hostname}`, { cause: error }))
    }
    if (this.contexts.size >= maxRemembered) this.contexts.clear()
    this.contexts.set(name, context)
    return context
  }
}
