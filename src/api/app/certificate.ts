import { Type } from 'typebox'
import {
  addCustomCertificate,
  checkHost,
  deleteCertificate,
  deleteHost,
  getCertificate,
  listCertificates,
  requestCertificate,
  type ShownHost,
} from '../../live/app/certificate.ts'
import { describeCertificate, type Host, type NameRecords } from '../../model/app/certificate.ts'
import { toRfc3339 } from '../../model/time.ts'
import { type Route, route } from '../http/route.ts'
import { foreignApp, noApp, notAllowed } from './error-text.ts'
import { ByApp } from './params.ts'

const ByHostname = Type.Object({
  ...ByApp.properties,
  hostname: Type.String({ description: 'A host name of the app.' }),
})

const Time = Type.String({ format: 'date-time' })
const OptionalTime = Type.Union([Time, Type.Null()])
const Status = Type.Enum(['active', 'pending_ownership', 'pending_validation'])
const Texts = Type.Array(Type.String())
const OptionalText = Type.Union([Type.String(), Type.Null()])

const Summary = Type.Object(
  {
    hostname: Type.String(),
    configured: Type.Boolean({ description: 'Whether it is served over TLS with its own certificate.' }),
    acme_requested: Type.Boolean({
      description: 'Whether the certificate authority of the platform issued a certificate for it.',
    }),
    has_custom_certificate: Type.Boolean(),
    has_fly_certificate: Type.Boolean({ description: 'Alias of `acme_requested`.' }),
    acme_dns_configured: Type.Boolean(),
    acme_alpn_configured: Type.Boolean(),
    acme_http_configured: Type.Boolean(),
    ownership_txt_configured: Type.Boolean(),
    status: Status,
    dns_provider: Type.Union([Type.String(), Type.Null()]),
    created_at: Time,
    updated_at: Time,
    expires_at: OptionalTime,
  },
  { title: 'CertificateSummary' },
)

const Issued = Type.Object({
  source: Type.Enum(['custom', 'fly']),
  status: Status,
  created_at: Time,
  expires_at: Time,
  issuer: Type.String(),
  issued: Type.Array(
    Type.Object({ type: Type.Enum(['rsa', 'ecdsa']), expires_at: Time, certificate_authority: Type.String() }),
  ),
})

const detailFields = {
  hostname: Type.String(),
  configured: Type.Boolean(),
  acme_requested: Type.Boolean(),
  status: Status,
  dns_provider: Type.Union([Type.String(), Type.Null()]),
  rate_limited_until: OptionalTime,
  certificates: Type.Array(Issued),
  validation: Type.Object({
    dns_configured: Type.Boolean(),
    alpn_configured: Type.Boolean(),
    http_configured: Type.Boolean(),
    ownership_txt_configured: Type.Boolean(),
  }),
  dns_requirements: Type.Object({
    a: Texts,
    aaaa: Texts,
    cname: Type.String(),
    acme_challenge: Type.Object({ name: Type.String(), target: Type.String() }),
    ownership: Type.Object({ name: Type.String(), app_value: Type.String(), org_value: Type.String() }),
  }),
  validation_errors: Type.Array(
    Type.Object({ code: Type.String(), message: Type.String(), remediation: Type.String(), timestamp: Time }),
  ),
}
const Detail = Type.Object({ ...detailFields, warning: Type.Optional(Type.String()) }, { title: 'CertificateDetail' })
const Checked = Type.Object(
  {
    ...detailFields,
    dns_records: Type.Object({
      a: Texts,
      aaaa: Texts,
      cname: Texts,
      resolved_addresses: Texts,
      soa: OptionalText,
      acme_challenge_cname: OptionalText,
      ownership_txt: OptionalText,
    }),
  },
  { title: 'CertificateCheck' },
)

const Hostname = Type.String({ description: 'Such as `www.example.com` or `*.example.com`.' })
const noHost = `${noApp} Or: it has no such host name.`
const refused = 'The host name is not valid, is below a domain of the platform, or is in use by another app'

export const certificateRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/certificates',
    id: 'listCertificates',
    tag: 'Certificates',
    summary: 'List the host names of an app and their certificates',
    scope: 'read',
    params: ByApp,
    query: Type.Object({
      filter: Type.Optional(Type.String({ description: 'Only host names that contain this.' })),
      limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 500, description: '25 when omitted.' })),
      cursor: Type.Optional(Type.String({ description: '`next_cursor` of the previous page.' })),
    }),
    status: 200,
    response: Type.Object(
      {
        certificates: Type.Array(Summary),
        total_count: Type.Integer(),
        next_cursor: Type.Optional(Type.String()),
      },
      { title: 'CertificateList' },
    ),
    errors: { 403: foreignApp, 404: noApp },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const { total, hosts, next } = await listCertificates(ctx, params.app_name, { limit: 25, ...query })
      return { certificates: hosts.map(summaryView), total_count: total, ...(next ? { next_cursor: next } : {}) }
    },
  }),
  route({
    method: 'POST',
    path: '/v1/apps/{app_name}/certificates/acme',
    id: 'requestCertificate',
    tag: 'Certificates',
    summary: 'Request a certificate for a host name',
    description:
      'The certificate authority of the platform issues it immediately, without ACME. Only clients that trust this authority accept it.',
    scope: 'write',
    action: 'create',
    params: ByApp,
    body: Type.Object({ hostname: Hostname }),
    status: 201,
    response: Detail,
    errors: { 403: notAllowed, 404: noApp, 422: `${refused}.` },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => detailView(await requestCertificate(ctx, params.app_name, body.hostname)),
  }),
  route({
    method: 'POST',
    path: '/v1/apps/{app_name}/certificates/custom',
    id: 'addCustomCertificate',
    tag: 'Certificates',
    summary: 'Upload a certificate for a host name',
    description: 'The private key is stored encrypted and never shown. Another upload replaces the certificate.',
    scope: 'write',
    action: 'create',
    params: ByApp,
    body: Type.Object({
      hostname: Hostname,
      fullchain: Type.String({
        description: 'The certificate chain in PEM format, the certificate of the host name first.',
      }),
      private_key: Type.String({ description: 'The private key in PEM format, without a passphrase.' }),
    }),
    status: 201,
    response: Detail,
    errors: {
      403: notAllowed,
      404: noApp,
      422: `${refused}, or the certificate and the key are not valid.`,
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => detailView(await addCustomCertificate(ctx, params.app_name, body)),
  }),
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/certificates/{hostname}',
    id: 'getCertificate',
    tag: 'Certificates',
    summary: 'Show a host name and its certificates',
    scope: 'read',
    params: ByHostname,
    status: 200,
    response: Detail,
    errors: { 403: foreignApp, 404: noHost },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => detailView(await getCertificate(ctx, params.app_name, params.hostname)),
  }),
  route({
    method: 'POST',
    path: '/v1/apps/{app_name}/certificates/{hostname}/check',
    id: 'checkCertificate',
    tag: 'Certificates',
    summary: 'Check the DNS records of a host name',
    scope: 'read',
    params: ByHostname,
    status: 200,
    response: Checked,
    errors: { 403: foreignApp, 404: noHost },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => {
      const { shown, found } = await checkHost(ctx, params.app_name, params.hostname)
      const view = detailView(shown)
      const resolved = [...found.a, ...found.aaaa]
      const isHere = [...shown.records.a, ...shown.records.aaaa].some((address) => resolved.includes(address))
      return {
        ...view,
        validation: { ...view.validation, dns_configured: isHere },
        dns_records: recordsView(found),
      }
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/apps/{app_name}/certificates/{hostname}',
    id: 'deleteCertificate',
    tag: 'Certificates',
    summary: 'Remove a host name and its certificates',
    scope: 'write',
    params: ByHostname,
    status: 204,
    errors: { 403: notAllowed, 404: noHost },
    wrongTypeStatus: 400,
    run: ({ ctx, params }) => deleteHost(ctx, params.app_name, params.hostname),
  }),
  route({
    method: 'DELETE',
    path: '/v1/apps/{app_name}/certificates/{hostname}/acme',
    id: 'deleteMadeCertificate',
    tag: 'Certificates',
    summary: 'Remove the certificate that the platform issued',
    scope: 'write',
    params: ByHostname,
    status: 200,
    response: Detail,
    errors: { 403: notAllowed, 404: noHost },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) =>
      withWarning(detailView(await deleteCertificate(ctx, params.app_name, params.hostname, 'authority'))),
  }),
  route({
    method: 'DELETE',
    path: '/v1/apps/{app_name}/certificates/{hostname}/custom',
    id: 'deleteCustomCertificate',
    tag: 'Certificates',
    summary: 'Remove the uploaded certificate',
    scope: 'write',
    params: ByHostname,
    status: 200,
    response: Detail,
    errors: { 403: notAllowed, 404: noHost },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) =>
      withWarning(detailView(await deleteCertificate(ctx, params.app_name, params.hostname, 'custom'))),
  }),
]

function summaryView({ hostname, createdAt, certificates }: Host) {
  const configured = certificates.length > 0
  const isMade = certificates.some(({ source }) => source === 'authority')
  const changes = [createdAt, ...certificates.map((certificate) => certificate.createdAt)]
  return {
    hostname,
    configured,
    acme_requested: isMade,
    has_custom_certificate: certificates.some(({ source }) => source === 'custom'),
    has_fly_certificate: isMade,
    // Ownership is not validated: anyone who may change the app may add host names to it.
    acme_dns_configured: false,
    acme_alpn_configured: configured,
    acme_http_configured: configured,
    ownership_txt_configured: false,
    status: configured ? 'active' : 'pending_validation',
    dns_provider: null,
    created_at: toRfc3339(createdAt),
    updated_at: toRfc3339(changes.reduce((last, change) => (change > last ? change : last))),
    expires_at: certificates[0] ? toRfc3339(certificates[0].expiresAt) : null,
  }
}

function detailView({ appId, host, records }: ShownHost) {
  const summary = summaryView(host)
  const { hostname, configured, acme_requested, status, dns_provider } = summary
  const name = hostname.replace(/^\*\./, '')
  return {
    hostname,
    configured,
    acme_requested,
    status,
    dns_provider,
    rate_limited_until: null,
    certificates: host.certificates.map(issuedView),
    validation: {
      dns_configured: summary.acme_dns_configured,
      alpn_configured: summary.acme_alpn_configured,
      http_configured: summary.acme_http_configured,
      ownership_txt_configured: summary.ownership_txt_configured,
    },
    dns_requirements: {
      ...records,
      acme_challenge: { name: `_acme-challenge.${name}`, target: '' },
      ownership: { name: `_fly-ownership.${name}`, app_value: `app-${appId}`, org_value: '' },
    },
    validation_errors: [],
  }
}

function issuedView(certificate: Host['certificates'][number]) {
  const { issuer, type } = describeCertificate(certificate)
  const expires = toRfc3339(certificate.expiresAt)
  return {
    source: certificate.source === 'custom' ? 'custom' : 'fly',
    status: 'active',
    created_at: toRfc3339(certificate.createdAt),
    expires_at: expires,
    issuer,
    issued: [{ type, expires_at: expires, certificate_authority: issuer }],
  }
}

function recordsView({ a, aaaa, cname, soa, acmeChallengeCname, ownershipTxt }: NameRecords) {
  return {
    a,
    aaaa,
    cname,
    resolved_addresses: [...a, ...aaaa],
    soa,
    acme_challenge_cname: acmeChallengeCname,
    ownership_txt: ownershipTxt,
  }
}

function withWarning<T extends { configured: boolean; hostname: string }>(view: T): T & { warning?: string } {
  if (view.configured) return view
  return {
    ...view,
    warning: `${view.hostname} has no certificate left; clients get the default certificate of the platform`,
  }
}
