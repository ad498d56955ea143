import { Type } from 'typebox'
import { createSandboxApiToken } from '../../actions/account/token.ts'
import { defaultTokenDays } from '../../model/account/token.ts'
import { noOrganization } from '../error-text.ts'
import { type Route, route } from '../http/route.ts'

/** The operation with which the sandbox SDKs exchange a token of flyctl for one of their own. */
export const tokenMintRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/organizations/{org_slug}/tokens',
    id: 'createSandboxToken',
    tag: 'Tokens',
    summary: 'Create a token for an organization',
    description: `The token is only shown in this response. It is of kind \`org\` and valid for ${defaultTokenDays} days.`,
    scope: 'write',
    params: Type.Object({ org_slug: Type.String() }),
    body: Type.Object({
      description: Type.Optional(Type.String({ maxLength: 100, description: 'A label for the list of tokens.' })),
      invite_code: Type.Optional(Type.String({ description: 'Has no effect.' })),
    }),
    ignoreNulls: true,
    status: 201,
    response: Type.Object({ token: Type.String() }),
    errors: { 403: 'Only a root token may do this.', 404: noOrganization },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => {
      const { token } = await createSandboxApiToken(ctx, params.org_slug, body.description || 'sandbox API')
      return { token }
    },
  }),
]
