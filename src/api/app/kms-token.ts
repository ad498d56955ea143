import { requireToken } from '../../actions/context.ts'
import { notFound } from '../../model/errors.ts'
import { machineHeader } from '../../model/network.ts'
import { type Route, route } from '../http/route.ts'

const reason =
  'there is no separate key service to ask for a token: use the keys of an app at /v1/apps/{app_name}/secretkeys with a token of the app'

export const kmsTokenRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/tokens/kms',
    id: 'createKmsToken',
    tag: 'Tokens',
    summary: 'Request a token for a separate key service',
    description:
      'Always refused: the platform has no key service besides its API. Programs use the keys of their app at `/v1/apps/{app_name}/secretkeys` with a token of the app.',
    scope: 'read',
    tokenOptional: true,
    status: 200,
    errors: { 404: 'There is no separate key service.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, headers }) => {
      if (typeof headers[machineHeader] !== 'string') await requireToken(ctx)
      throw notFound(reason)
    },
  }),
]
