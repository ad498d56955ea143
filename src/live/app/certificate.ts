import { requireWriter } from '../../model/account/caller.ts'
import {
  type CertificateSource,
  certificateKey,
  checkCertificate,
  checkHostname,
  type Host,
  hostnameText,
} from '../../model/app/certificate.ts'
import { notFound } from '../../model/errors.ts'
import { seal } from '../../model/seal.ts'
import {
  ensureHost,
  findHost,
  hostnameTaken,
  listHosts,
  listPublicAddresses,
  putCertificate,
  removeCertificate,
  removeHost,
} from '../../store/app/certificate.ts'
import { appNotFound, getVisibleApp } from '../../store/app/visible.ts'
import { type LiveContext, withDeadline } from '../context.ts'

/** A host name of an app with the DNS records that it needs. */
export interface ShownHost {
  appId: string
  host: Host
  /** The DNS records that would make the host name reach the app. */
  records: { a: string[]; aaaa: string[]; cname: string }
}

export async function listCertificates(
  ctx: LiveContext,
  appName: string,
  query: { filter?: string; limit: number; cursor?: string },
) {
  const { app } = await getVisibleApp(ctx.db, ctx.tokenHash, appName)
  const after = query.cursor === undefined ? '' : Buffer.from(query.cursor, 'base64url').toString()
  const page = {
    filter: (query.filter ?? '').toLowerCase(),
    after: after.replaceAll('\0', ''),
    limit: query.limit + 1,
  }
  const { total, hosts } = await listHosts(ctx.db, app.id, page)
  const shown = hosts.slice(0, query.limit)
  const next = hosts.length > query.limit ? Buffer.from(shown.at(-1)!.hostname).toString('base64url') : undefined
  return { total, hosts: shown, next }
}

export async function getCertificate(ctx: LiveContext, appName: string, hostname: string): Promise<ShownHost> {
  const { app } = await getVisibleApp(ctx.db, ctx.tokenHash, appName)
  return show(ctx, app, hostname)
}

/** Returns a host name with its current DNS records. */
export async function checkHost(ctx: LiveContext, appName: string, hostname: string) {
  const shown = await getCertificate(ctx, appName, hostname)
  const { a, aaaa, cname } = shown.records
  const found = await withDeadline(ctx.lookUpName(shown.host.hostname, [...a, ...aaaa, cname]), 'the DNS server')
  return { shown, found }
}

export async function addCustomCertificate(
  ctx: LiveContext,
  appName: string,
  input: { hostname: string; fullchain: string; private_key: string },
): Promise<ShownHost> {
  const app = await getWritable(ctx, appName)
  const hostname = checkHostname(input.hostname, platformDomains(ctx))
  const expiresAt = checkCertificate(hostname, input.fullchain, input.private_key)
  const { fullchain, private_key: privateKey } = input
  await put(ctx, app.id, hostname, { source: 'custom', fullchain, privateKey, expiresAt })
  return show(ctx, app, hostname)
}

/** Issues a certificate of the platform's own authority. No public authority signs it, so only clients that trust it do. */
export async function requestCertificate(ctx: LiveContext, appName: string, requestedName: string): Promise<ShownHost> {
  const app = await getWritable(ctx, appName)
  const hostname = checkHostname(requestedName, platformDomains(ctx))
  const made = await withDeadline(ctx.makeCertificate(hostname), 'the certificate authority')
  const expiresAt = checkCertificate(hostname, made.fullchain, made.privateKey)
  await put(ctx, app.id, hostname, { source: 'authority', ...made, expiresAt })
  return show(ctx, app, hostname)
}

export async function deleteHost(ctx: LiveContext, appName: string, hostname: string): Promise<void> {
  const app = await getWritable(ctx, appName)
  if (!(await removeHost(ctx.db, app.id, hostnameText(hostname)))) throw hostNotFound()
}

/** Removes one certificate; the host name and a certificate from the other source stay. */
export async function deleteCertificate(
  ctx: LiveContext,
  appName: string,
  hostname: string,
  source: CertificateSource,
): Promise<ShownHost> {
  const app = await getWritable(ctx, appName)
  if (!(await removeCertificate(ctx.db, app.id, hostnameText(hostname), source))) throw hostNotFound()
  return show(ctx, app, hostname)
}

async function put(
  ctx: LiveContext,
  appId: string,
  hostname: string,
  certificate: { source: CertificateSource; fullchain: string; privateKey: string; expiresAt: Date },
): Promise<void> {
  const privateKey = seal(certificateKey(ctx.encryptionKey), Buffer.from(certificate.privateKey))
  const result = await ctx.db.transaction(async (tx) => {
    const owner = await ensureHost(tx, appId, hostname)
    if (owner === 'ours') await putCertificate(tx, appId, hostname, { ...certificate, privateKey })
    return owner
  })
  if (result === 'without app') throw appNotFound()
  if (result === 'taken') throw hostnameTaken()
}

async function show(ctx: LiveContext, app: { id: string; name: string }, hostname: string): Promise<ShownHost> {
  const host = await findHost(ctx.db, app.id, hostnameText(hostname))
  if (!host) throw hostNotFound()
  const addresses = await listPublicAddresses(ctx.db, app.id)
  return { appId: app.id, host, records: { ...addresses, cname: new URL(ctx.settings.appUrl(app.name)).hostname } }
}

async function getWritable(ctx: LiveContext, appName: string) {
  const { caller, app } = await getVisibleApp(ctx.db, ctx.tokenHash, appName)
  requireWriter(caller)
  return app
}

/** The domains whose subdomains the platform assigns to apps and sandboxes. */
function platformDomains({ settings }: LiveContext): string[] {
  return [settings.appUrl('x'), settings.sandboxUrl('x')].map((url) => new URL(url).hostname.slice(2))
}

function hostNotFound() {
  return notFound('certificate not found')
}
