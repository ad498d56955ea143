import type { FastifyInstance, FastifyRequest, HTTPMethods } from 'fastify'
import { chooseCredential } from '../../actions/account/credential.ts'
import { requireToken } from '../../actions/context.ts'
import { action } from '../../model/account/access.ts'
import { readCredentials } from './auth.ts'
import type { MethodTable } from './method-table.ts'
import type { ServerOptions } from './options.ts'

const refusable: HTTPMethods[] = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'TRACE']

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The route exists to refuse its methods. */
    refuses?: boolean
  }
}

/** Refuses what no route answers: 404 for unknown paths, 405 for other methods. Callers without a token get a 401. */
export function addUnknownPaths(server: FastifyInstance, options: ServerOptions, methods: MethodTable): void {
  server.addHook('onRoute', ({ url, method, config }) => {
    if (config?.refuses) return
    for (const one of [method].flat()) methods.add(url, one)
  })
  // In a hook, because a handler runs only after the body has been read and found to be valid.
  server.addHook('onRequest', (request, _reply, done) => {
    if (!request.is404 && !request.routeOptions.config.refuses) return done()
    const refusal = methods.refusalOf(request.method, request.url.split('?')[0]!)
    checkToken(options, request).then(() => done(refusal), done)
  })
}

/**
 * Without these routes, a request for a path without parameters would reach an operation whose path has a parameter in
 * the same place, when only that one has the method.
 */
export function refuseOtherMethods(server: FastifyInstance, url: string, known: readonly string[]): void {
  const method = refusable.filter((one) => !known.includes(one) && !(one === 'HEAD' && known.includes('GET')))
  server.route({ method, url, config: { refuses: true }, handler: async () => undefined })
}

/** Throws 401 unless the request has a valid token, also where no operation asks for one. */
export async function checkToken({ context, area }: ServerOptions, { headers }: FastifyRequest): Promise<void> {
  const credentials = readCredentials(headers.authorization, context.encryptionKey)
  const { hash } = await chooseCredential({ db: context.db, area }, credentials, [], action.read)
  await requireToken({ db: context.db, area, tokenHash: hash })
}
