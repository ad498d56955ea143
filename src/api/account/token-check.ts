import { Type } from 'typebox'
import {
  type Authorized,
  authenticateTokens,
  authorizeTokens,
  type CheckedToken,
} from '../../actions/account/token-check.ts'
import { readMacaroon, tokenBytes } from '../../model/account/macaroon.ts'
import { caveatsOf, TokenAccess } from '../../model/account/token-check.ts'
import { listTokens } from '../http/auth.ts'
import { type Route, route } from '../http/route.ts'
import { TokenKindView } from './token.ts'

const Header = Type.Optional(
  Type.String({
    maxLength: 65_536,
    description: 'One or more tokens behind `Bearer` or `FlyV1`; when omitted, the header of this request.',
  }),
)

const VerifiedToken = Type.Object(
  {
    header: Type.String({ description: 'This token alone, as the header of a request.' }),
    permission_token: Type.String({ description: 'Its bytes, as base64: those behind `fm2_`, else its text.' }),
    caveats: Type.Array(Type.Object({ type: Type.String(), body: Type.Unknown() }), {
      description: 'What limits it. `Organization` and `Apps` name numbers, with letters for what it may do there.',
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
  { title: 'AuthorizedAccess', description: 'What was asked about, with the numbers of what was named.' },
)

const noneValid = 'None of the tokens is valid.'

export const tokenCheckRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/tokens/authenticate',
    id: 'authenticateTokens',
    tag: 'Tokens',
    summary: 'Tell which tokens are valid',
    description: 'For programs that are shown tokens by others. Those that are not in the answer open nothing.',
    scope: 'read',
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
    summary: 'Tell whether tokens may do something',
    description:
      'As a request with them would be answered: 200 when one of them may. Parts of things (`app_feature` and the like), the command and the mutation are part of the answer but limit no token here.',
    scope: 'read',
    tokenOptional: true,
    body: Type.Object({ header: Header, access: TokenAccess }),
    ignoreNulls: true,
    status: 200,
    response: Type.Object({ access: AuthorizedAccess, verified_token: VerifiedToken }, { title: 'AuthorizedToken' }),
    errors: {
      401: noneValid,
      403: 'They may not: it belongs to another organization, or they may only read.',
      404: 'What is named does not exist, or the organization is not visible to them.',
    },
    wrongTypeStatus: 400,
    run: async ({ ctx, body, headers }) => {
      const tokens = listTokens(body.header ?? headers.authorization)
      const authorized = await authorizeTokens(ctx, tokens, body.access)
      return { access: accessView(body.access, authorized), verified_token: tokenView(authorized.checked) }
    },
  }),
]

function tokenView({ text, token }: CheckedToken) {
  return {
    header: `${readMacaroon(text) ? 'FlyV1' : 'Bearer'} ${text}`,
    permission_token: tokenBytes(text).toString('base64'),
    caveats: caveatsOf(token),
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
