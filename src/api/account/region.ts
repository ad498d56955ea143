import { Type } from 'typebox'
import { getCaller } from '../../actions/context.ts'
import { listRegions } from '../../model/account/region.ts'
import { type Route, route } from '../http/route.ts'

const RegionView = Type.Object(
  {
    code: Type.String(),
    name: Type.String(),
    latitude: Type.Number(),
    longitude: Type.Number(),
    geo_region: Type.Union([Type.String(), Type.Null()]),
    gateway_available: Type.Boolean(),
    requires_paid_plan: Type.Boolean(),
    deprecated: Type.Boolean(),
    mpg_available: Type.Boolean({ description: 'Whether clusters can be created in it.' }),
  },
  { title: 'Region' },
)

export const regionRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/platform/regions',
    id: 'listRegions',
    tag: 'Platform',
    summary: 'List the regions',
    description:
      'All regions are on this machine; resources only record the code. When no regions are configured, any code is accepted and the well-known ones are listed.',
    scope: 'read',
    targets: 'none',
    status: 200,
    response: Type.Object({ nearest: Type.String(), regions: Type.Array(RegionView) }, { title: 'RegionList' }),
    errors: {},
    wrongTypeStatus: 400,
    run: async ({ ctx }) => {
      await getCaller(ctx)
      return {
        nearest: ctx.settings.defaultRegion,
        regions: listRegions(ctx.settings).map(({ area, ...region }) => ({
          ...region,
          geo_region: area,
          gateway_available: true,
          requires_paid_plan: false,
          deprecated: false,
          mpg_available: true,
        })),
      }
    },
  }),
]
