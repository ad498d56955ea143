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
    summary: 'Prove to others which machine this is',
    description:
      'The answer is a JWT of OpenID Connect, valid for ten minutes, that third parties check by `/.well-known/openid-configuration` of the issuer (`BERTH_ISSUER`). For a machine that asks at `http://_api.internal:4280`, which is known by its address and needs no token.',
    scope: 'read',
    tokenOptional: true,
    body: IdentityWish,
    ignoreNulls: true,
    streams: true,
    contentType: 'text/plain',
    status: 200,
    errors: { 403: 'It is not a machine that asks.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, body, headers }) => {
      const address = headers[machineHeader]
      if (typeof address !== 'string') await requireToken(ctx)
      const token = await issueIdentity(ctx, String(address ?? ''), body)
      return new StreamAnswer(200, { 'content-type': 'text/plain' }, async (out) => void out.write(token))
    },
  }),
]
