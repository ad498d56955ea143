import { Type } from 'typebox'
import {
  type Authorized,
  authenticateTokens,
  authorizeTokens,
  type CheckedToken,
} from '../../actions/account/token-check.ts'
import { readMacaroon, tokenBytes } from '../../model/account/macaroon.ts'
import { caveatsOf, showCaveat, TokenAccess } from '../../model/account/token-check.ts'
import { listTokens } from '../http/auth.ts'
import { type Route, route } from '../http/route.ts'
import { TokenKindView } from './token.ts'

const Header = Type.Optional(
  Type.String({
    maxLength: 65_536,
    description: 'One or more tokens after `Bearer` or `FlyV1`; by default the header of this request.',
  }),
)

const VerifiedToken = Type.Object(
  {
    header: Type.String({ description: 'The value of an `Authorization` header with this token only.' }),
    permission_token: Type.String({ description: 'The token in base64: the bytes after `fm2_`, or else its text.' }),
    caveats: Type.Array(Type.Object({ type: Type.String(), body: Type.Unknown() }), {
      description:
        'Its restrictions. `Organization` and `Apps` contain numeric ids, with letters for the permitted actions.',
    }),
    token_id: Type.String(),
    kind: TokenKindView,
    org_slug: Type.Union([Type.String(), Type.Null()]),
    app_name: Type.Union([Type.String(), Type.Null()]),
  },
  { title: 'VerifiedToken' },
)

const AuthorizedAccess = Type.Object(
  {
    action: Type.String(),
    orgid: Type.Integer(),
    appid: Type.Optional(Type.Integer()),
    machine: Type.Optional(Type.String()),
    volume: Type.Optional(Type.String()),
    feature: Type.Optional(Type.String()),
    app_feature: Type.Optional(Type.String()),
    machine_feature: Type.Optional(Type.String()),
    mutation: Type.Optional(Type.String()),
    command: Type.Optional(Type.Array(Type.String())),
    storage_object: Type.Optional(Type.String()),
    sourceMachine: Type.Optional(Type.String()),
  },
  { title: 'AuthorizedAccess', description: 'The requested access, with numeric ids.' },
)

const noneValid = 'None of the tokens is valid.'

export const tokenCheckRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/tokens/authenticate',
    id: 'authenticateTokens',
    tag: 'Tokens',
    summary: 'Verify tokens',
    description:
      'For programs that receive tokens from others. Tokens that are missing from the response are not valid.',
    scope: 'read',
    targets: 'none',
    tokenOptional: true,
    body: Type.Object({ header: Header }),
    ignoreNulls: true,
    status: 200,
    response: Type.Array(VerifiedToken),
    errors: { 401: noneValid },
    wrongTypeStatus: 400,
    run: async ({ ctx, body, headers }) => {
      const tokens = listTokens(body.header ?? headers.authorization)
      return (await authenticateTokens(ctx, tokens)).map(tokenView)
    },
  }),
  route({
    method: 'POST',
    path: '/v1/tokens/authorize',
    id: 'authorizeTokens',
    tag: 'Tokens',
    summary: 'Check the permissions of tokens',
    description:
      'The status is 200 when one of the tokens has the permission. Features (such as `app_feature`), the command and the mutation matter for tokens with caveats about them.',
    scope: 'read',
    targets: 'none',
    tokenOptional: true,
    body: Type.Object({ header: Header, access: TokenAccess }),
    ignoreNulls: true,
    status: 200,
    response: Type.Object({ access: AuthorizedAccess, verified_token: VerifiedToken }, { title: 'AuthorizedToken' }),
    errors: {
      401: noneValid,
      403: 'The tokens lack the permission: the app belongs to another organization, or they may only read.',
      404: 'The resource does not exist, or is not visible to the tokens.',
    },
    wrongTypeStatus: 400,
    run: async ({ ctx, body, headers }) => {
      const tokens = listTokens(body.header ?? headers.authorization)
      const authorized = await authorizeTokens(ctx, tokens, body.access)
      return { access: accessView(body.access, authorized), verified_token: tokenView(authorized.checked) }
    },
  }),
]

function tokenView({ text, token, attenuation }: CheckedToken) {
  return {
    header: `${readMacaroon(text) ? 'FlyV1' : 'Bearer'} ${text}`,
    permission_token: tokenBytes(text).toString('base64'),
    caveats: [...caveatsOf(token), ...(attenuation?.caveats ?? []).map(showCaveat)],
    token_id: token.tokenId,
    kind: token.kind,
    org_slug: token.orgSlug,
    app_name: token.appName,
  }
}

function accessView(asked: TokenAccess, { action, orgNumericId, appNumericId }: Authorized) {
  const { app_feature, machine_feature, mutation, command, storage_object } = asked
  return {
    action,
    orgid: orgNumericId,
    ...(appNumericId === null ? {} : { appid: appNumericId }),
    machine: asked.machine_id,
    volume: asked.volume_id,
    feature: asked.org_feature,
    sourceMachine: asked.source_machine,
    app_feature,
    machine_feature,
    mutation,
    command,
    storage_object,
  }
}
