import { Type } from 'typebox'
import { createToken, getCurrentToken, listTokensOf, revokeTokenById } from '../../actions/account/token.ts'
import { rotateRootToken } from '../../live/account/token.ts'
import { CreateToken, callerEmail, type Token, tokenKinds } from '../../model/account/token.ts'
import { type Micros, toRfc3339 } from '../../model/time.ts'
import { noOrganization, readOnly } from '../error-text.ts'
import { orgTargets, textField } from '../http/access.ts'
import { type Route, route } from '../http/route.ts'

export const TokenKindView = Type.Enum([...tokenKinds, 'app'])
const OptionalTime = Type.Union([Type.String({ format: 'date-time' }), Type.Null()])

const TokenView = Type.Object(
  {
    id: Type.String(),
    kind: TokenKindView,
    org_slug: Type.Union([Type.String(), Type.Null()]),
    sandbox: Type.Union([Type.String(), Type.Null()]),
    name: Type.String(),
    created_at: Type.String({ format: 'date-time' }),
    expires_at: OptionalTime,
    revoked_at: OptionalTime,
  },
  { title: 'Token' },
)

const IssuedTokenView = Type.Object(
  { id: Type.String(), token: Type.String(), kind: TokenKindView },
  { title: 'IssuedToken' },
)

export const tokenRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/tokens',
    id: 'createToken',
    tag: 'Tokens',
    summary: 'Create a token',
    description: 'The token is only shown in this response; the platform stores its hash.',
    scope: 'write',
    targets: ({ body }) => orgTargets(textField(body, 'org_slug')),
    body: CreateToken,
    status: 201,
    response: IssuedTokenView,
    errors: {
      403: 'The token may only read, or may not create a token of this kind.',
      404: noOrganization,
      422: 'A field is missing or not valid.',
    },
    wrongTypeStatus: 422,
    run: ({ ctx, body }) => createToken(ctx, body),
  }),
  route({
    method: 'GET',
    path: '/v1/tokens',
    id: 'listTokens',
    tag: 'Tokens',
    summary: 'List tokens, newest first',
    scope: 'read',
    targets: ({ query }) => orgTargets(textField(query, 'org_slug')),
    query: Type.Object({
      org_slug: Type.Optional(Type.String({ description: 'Only tokens of this organization.' })),
    }),
    status: 200,
    response: Type.Object({ tokens: Type.Array(TokenView) }, { title: 'TokenList' }),
    errors: {
      403: 'A read-only token cannot list tokens.',
      404: noOrganization,
    },
    wrongTypeStatus: 400,
    run: async ({ ctx, query }) => ({ tokens: (await listTokensOf(ctx, query.org_slug)).map(tokenView) }),
  }),
  route({
    method: 'GET',
    path: '/v1/tokens/current',
    id: 'currentToken',
    tag: 'Tokens',
    summary: 'Show the token of this request',
    scope: 'read',
    targets: 'none',
    status: 200,
    response: Type.Object(
      {
        tokens: Type.Array(
          Type.Object({
            token_id: Type.String(),
            kind: TokenKindView,
            org_slug: Type.Union([Type.String(), Type.Null()]),
            organization: Type.Union([Type.String(), Type.Null()]),
            user: Type.String({ description: 'A name for the token, for clients that expect a user.' }),
            apps: Type.Array(Type.String(), { description: 'The apps it is limited to; empty: no limit.' }),
            source_machine_id: Type.String(),
            restricted_to_machine: Type.String(),
          }),
        ),
      },
      { title: 'CurrentToken' },
    ),
    errors: {},
    wrongTypeStatus: 400,
    run: async ({ ctx }) => {
      const token = await getCurrentToken(ctx)
      const about = { token_id: token.tokenId, kind: token.kind, org_slug: token.orgSlug, organization: token.orgSlug }
      const apps = token.appName === null ? [] : [token.appName]
      return {
        tokens: [{ ...about, user: callerEmail(token), apps, source_machine_id: '', restricted_to_machine: '' }],
      }
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/tokens/{token_id}',
    id: 'revokeToken',
    tag: 'Tokens',
    summary: 'Revoke a token',
    description:
      'It stops working with the next request, and everything that was opened with it, such as WebSockets, logs and uploads, is closed within a second.',
    scope: 'write',
    params: Type.Object({ token_id: Type.String({ description: 'The id of the token, not the token itself.' }) }),
    status: 204,
    errors: {
      403: readOnly,
      404: 'The organization of this token has no such token.',
      409: 'It is the root token of the configuration, which can only be replaced.',
    },
    wrongTypeStatus: 400,
    run: ({ ctx, params }) => revokeTokenById(ctx, params.token_id),
  }),
  route({
    method: 'POST',
    path: '/v1/tokens/root/rotate',
    id: 'rotateRootToken',
    tag: 'Tokens',
    summary: 'Replace the root token of the platform',
    description:
      'Creates a new root token, stores it in `$BERTH_HOME/token` and revokes the old one. The token is also shown in this response.',
    scope: 'write',
    outsideTransaction: true,
    status: 201,
    response: IssuedTokenView,
    errors: {
      403: 'Only a root token may do this.',
      409: 'The token is set by `BERTH_TOKEN`; it is changed there, followed by a restart.',
    },
    wrongTypeStatus: 400,
    run: ({ ctx }) => rotateRootToken(ctx),
  }),
]

function tokenView(token: Token) {
  const time = (value: Micros | null) => (value === null ? null : toRfc3339(value))
  return {
    id: token.id,
    kind: token.kind,
    org_slug: token.orgSlug,
    sandbox: token.sandbox,
    name: token.name,
    created_at: toRfc3339(token.createdAt),
    expires_at: time(token.expiresAt),
    revoked_at: time(token.revokedAt),
  }
}
