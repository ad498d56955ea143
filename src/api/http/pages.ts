import type { FastifyInstance, FastifyRequest } from 'fastify'
import { listAllQuotas } from '../../actions/account/quota.ts'
import { getCaller } from '../../actions/context.ts'
import { databaseAnswers } from '../../actions/health.ts'
import { listIdentityKeys } from '../../live/app/identity.ts'
import { withConnections } from '../../live/connection.ts'
import { isOperator } from '../../model/account/caller.ts'
import { discovery } from '../../model/app/identity.ts'
import { forbidden, unavailable } from '../../model/errors.ts'
import { isLoopback } from '../../model/network.ts'
import { withExamples } from '../docs/document.ts'
import { docsHeaders, docsPage } from '../docs/page.ts'
import { readCredentials } from './auth.ts'
import { openApiDocument } from './openapi.ts'
import type { ServerOptions } from './options.ts'
import { staticPage } from './static-page.ts'

/** Adds the pages beside the operations: health, metrics, the OpenAPI document and the API reference. */
export function addPages(server: FastifyInstance, { area, routes, context, metrics }: ServerOptions): void {
  const { db } = context
  server.get('/healthz', async () => ({ status: 'ok' }))

  server.get('/readyz', async () => {
    if (!(await databaseAnswers(db))) throw unavailable('the state database is unavailable')
    return { status: 'ready' }
  })

  // Metrics describe the whole platform, so only its operator may read them: a local process, or the root token.
  server.get('/metrics', async (request, reply) => {
    if (!isLoopback(request.ip ?? '') || isProxied(request)) {
      const [credential] = readCredentials(request.headers.authorization, context.encryptionKey)
      const caller = await getCaller({ db, area: 'platform', tokenHash: credential!.hash })
      if (!isOperator(credential!, caller)) throw forbidden('only a root token may read the metrics')
    }
    const organizations = await listAllQuotas(db)
    metrics.setQuotas(organizations.map((each) => withConnections(context.connections, each)))
    return reply.type(metrics.contentType).send(await metrics.text())
  })

  const document = () => openApiDocument(area, routes)
  server.get(
    '/openapi.json',
    staticPage(
      'application/json',
      () => ({}),
      () => JSON.stringify(withExamples(document())),
    ),
  )

  if (area === 'platform') addIdentityPages(server, context)

  server.get(
    '/docs',
    staticPage('text/html; charset=utf-8', docsHeaders, () =>
      docsPage(document(), area === 'platform' ? 'BERTH_URL' : 'BERTH_SANDBOX_URL'),
    ),
  )

  server.get('/', async (_request, reply) => reply.redirect('/docs'))
}

/** OpenID Connect discovery, with which third parties verify the identity tokens of machines. */
function addIdentityPages(server: FastifyInstance, context: ServerOptions['context']): void {
  server.get('/.well-known/openid-configuration', async () => discovery(context.settings.issuer()))
  server.get('/.well-known/jwks.json', async () => listIdentityKeys(context))
}

/** A proxy on this host connects from loopback too, for clients from anywhere. */
function isProxied({ headers }: FastifyRequest): boolean {
  return ['x-forwarded-for', 'forwarded', 'via', 'x-real-ip'].some((name) => name in headers)
}
