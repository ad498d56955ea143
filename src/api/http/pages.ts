import type { FastifyInstance } from 'fastify'
import { getCaller } from '../../actions/context.ts'
import { databaseAnswers } from '../../actions/health.ts'
import { listIdentityKeys } from '../../live/app/identity.ts'
import { discovery } from '../../model/app/identity.ts'
import { forbidden, unavailable } from '../../model/errors.ts'
import { isLoopback } from '../../model/network.ts'
import { docsAt, docsPage } from '../docs/page.ts'
import { readTokenHash } from './auth.ts'
import { openApiDocument } from './openapi.ts'
import type { ServerOptions } from './server.ts'

/** What is served beside the operations: health, metrics, and the description of the operations themselves. */
export function addPages(server: FastifyInstance, { area, routes, ground, metrics }: ServerOptions): void {
  const { db } = ground
  // Made when somebody first looks: both take longer than the rest of a start, and memory.
  let openApiText: string | undefined
  let docsHtml: string | undefined

  server.get('/healthz', async () => ({ status: 'ok' }))

  server.get('/readyz', async () => {
    if (!(await databaseAnswers(db))) throw unavailable('the state database is unavailable')
    return { status: 'ready' }
  })

  // Figures about the whole platform are for its operator: somebody on this machine, or the root token.
  server.get('/metrics', async (request, reply) => {
    if (!isLoopback(request.ip ?? '')) {
      const caller = await getCaller({ db, area: 'platform', tokenHash: readTokenHash(request.headers.authorization) })
      if (caller.kind !== 'root') throw forbidden('only a root token may read the metrics')
    }
    return reply.type(metrics.contentType).send(await metrics.text())
  })

  server.get('/openapi.json', async (_request, reply) => {
    openApiText ??= JSON.stringify(openApiDocument(area, routes))
    return reply.type('application/json').send(openApiText)
  })

  if (area === 'platform') addIdentityPages(server, ground)

  server.get('/docs', async (request, reply) => {
    docsHtml ??= docsPage(openApiDocument(area, routes), area === 'platform' ? 'BERTH_URL' : 'BERTH_SANDBOX_URL')
    return reply
      .type('text/html; charset=utf-8')
      .header(
        'content-security-policy',
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'",
      )
      .send(docsAt(docsHtml, request.protocol, request.host))
  })

  server.get('/', async (_request, reply) => reply.redirect('/docs'))
}

/** By which others check who a machine is. */
function addIdentityPages(server: FastifyInstance, ground: ServerOptions['ground']): void {
  server.get('/.well-known/openid-configuration', async () => discovery(ground.settings.issuer()))
  server.get('/.well-known/jwks.json', async () => listIdentityKeys(ground))
}
