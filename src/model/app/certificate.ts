import { createHmac, createPrivateKey, X509Certificate } from 'node:crypto'
import { invalid } from '../errors.ts'
import type { Micros } from '../time.ts'

/** Derives the key that encrypts certificates' private keys. The edge gets this key instead of the platform's. */
export function certificateKey(encryptionKey: Buffer): Buffer {
  return createHmac('sha256', encryptionKey).update('private keys of certificates').digest()
}

/** Certificates of the platform's authority are renewed this many days before they expire. */
export const renewalDays = 30

export type CertificateSource = 'custom' | 'authority'

export interface Certificate {
  source: CertificateSource
  fullchain: string
  createdAt: Micros
  expiresAt: Micros
}

/** A custom host name of an app. */
export interface Host {
  hostname: string
  createdAt: Micros
  certificates: Certificate[]
}

const label = '[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?'
const hostnamePattern = new RegExp(`^(?:\\*\\.)?(?:${label}\\.)+${label}$`)

/** Normalizes to lowercase without a trailing dot. */
export function hostnameText(text: string): string {
  return text.trim().toLowerCase().replace(/\.$/, '').replaceAll('\0', '')
}

/** Returns the normalized name. Names below the platform's own domains are rejected. */
export function checkHostname(text: string, domains: string[]): string {
  const hostname = hostnameText(text)
  if (hostname.length > 253 || !hostnamePattern.test(hostname) || /^[\d.]+$/.test(hostname)) {
    throw invalid('hostname must be a host name such as www.example.com or *.example.com')
  }
  const own = domains.find(
    (domain) => hostname === domain || hostname.endsWith(`.${domain}`) || hostname === domain.replace(/^[^.]*/, '*'),
  )
  if (own) throw invalid(`hostname must not be below ${own}, which is the platform's own domain`)
  return hostname
}

const block = /-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g
const maxChain = 10
const maxBytes = 65_536

/** Checks that the key belongs to the first certificate, and that this is valid for the host name. Returns its expiry. */
export function checkCertificate(hostname: string, fullchain: string, privateKey: string, now = Date.now()): Date {
  if (fullchain.length > maxBytes || privateKey.length > maxBytes) throw invalid('fullchain or private_key is too long')
  const chain = fullchain.match(block) ?? []
  if (chain.length === 0 || chain.length > maxChain) {
    throw invalid(`fullchain must be 1 to ${maxChain} certificates in PEM, that of the host name first`)
  }
  const [leaf] = chain.map((text) => readCertificate(text))
  const key = readKey(privateKey)
  if (!leaf!.checkPrivateKey(key)) throw invalid('private_key does not belong to the first certificate of fullchain')
  const example = hostname.replace(/^\*/, 'any')
  if (leaf!.checkHost(example) === undefined) throw invalid(`the certificate is not for ${hostname}`)
  const expires = new Date(leaf!.validTo)
  if (!(expires.getTime() > now)) throw invalid('the certificate has expired')
  return expires
}

function readCertificate(text: string): X509Certificate {
  try {
    return new X509Certificate(text)
  } catch {
    throw invalid('fullchain contains an invalid certificate')
  }
}

function readKey(text: string) {
  try {
    return createPrivateKey(text)
  } catch {
    throw invalid('private_key must be a private key in PEM, without a passphrase')
  }
}

export function describeCertificate({ fullchain }: Pick<Certificate, 'fullchain'>): {
  issuer: string
  type: 'rsa' | 'ecdsa'
} {
  const certificate = new X509Certificate(fullchain)
  const issuer = /^CN=(.*)$/m.exec(certificate.issuer)?.[1] ?? certificate.issuer.replaceAll('\n', ', ')
  return { issuer, type: certificate.publicKey.asymmetricKeyType === 'rsa' ? 'rsa' : 'ecdsa' }
}

/** The DNS records of a host name. */
export interface NameRecords {
  a: string[]
  aaaa: string[]
  cname: string[]
  /** The primary name server of the zone of the host name. */
  soa: string | null
  /** Where the ACME challenges of the host name are delegated to. */
  acmeChallengeCname: string | null
  ownershipTxt: string | null
}
