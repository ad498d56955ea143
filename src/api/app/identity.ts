import { requireToken } from '../../actions/context.ts'
import { issueIdentity } from '../../live/app/identity.ts'
import { IdentityWish } from '../../model/app/identity.ts'
import { machineHeader } from '../../model/network.ts'
import { type Route, route, StreamAnswer } from '../http/route.ts'

export const identityRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/tokens/oidc',
    id: 'createIdentityToken',
    tag: 'Tokens',
    summary: 'Issue an identity token for this machine',
    description:
      'Returns an OpenID Connect JWT, valid for ten minutes, which third parties verify with `/.well-known/openid-configuration` of the issuer (`BERTH_ISSUER`). Only machines can call it, at `http://_api.internal:4280`; they are identified by their address and need no token.',
    scope: 'read',
    tokenOptional: true,
    body: IdentityWish,
    ignoreNulls: true,
    streams: true,
    contentType: 'text/plain',
    status: 200,
    errors: { 403: 'The caller is not a machine.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, body, headers }) => {
      const address = headers[machineHeader]
      if (typeof address !== 'string') await requireToken(ctx)
      const token = await issueIdentity(ctx, String(address ?? ''), body)
      return new StreamAnswer(200, { 'content-type': 'text/plain' }, async (out) => void out.write(token))
    },
  }),
]
