import { isIP } from 'node:net'
import { networkPattern } from '../../model/app/app.ts'
import { type CreateIp, type Ip, type IpPool, type IpType, ipTypes, parsePools } from '../../model/app/ip.ts'
import { badRequest, conflict, notFound } from '../../model/errors.ts'
import {
  allocateDedicatedIp,
  allocatePrivateIp,
  assignSharedIp,
  listIps,
  lockAppForShare,
  type NewIp,
  releaseIp,
} from '../../store/app/ip.ts'
import { appNotFound, getVisibleApp, getWritableApp } from '../../store/app/visible.ts'
import { getOrg } from '../account/org.ts'
import { type Context, checked, getCaller } from '../context.ts'

export async function listIpsOf(ctx: Context, appName: string): Promise<Ip[]> {
  const { app } = await getVisibleApp(ctx.db, ctx.tokenHash, appName)
  return listIps(ctx.db, app.id)
}

export async function allocateIp(ctx: Context, appName: string, input: CreateIp): Promise<Ip> {
  const type = await checked(ctx, () => checkInput(input))
  const app = await getWritableApp(ctx.db, ctx.tokenHash, appName)
  const isOwn = !input.org_slug || input.org_slug === app.orgSlug
  const orgId = isOwn ? app.orgId : (await getOrg(ctx, await getCaller(ctx), input.org_slug!)).id
  if (type !== 'private_v6' && orgId !== app.orgId) {
    throw badRequest('org_slug may be another organization than that of the app with private_v6 only')
  }
  const asked: NewIp = {
    appId: app.id,
    type,
    region: input.region || 'global',
    serviceName: input.service_name || null,
  }
  return ctx.db.transaction(async (tx) => {
    if (!(await lockAppForShare(tx, app.id))) throw appNotFound()
    if (type === 'private_v6') {
      const from = { orgId, network: input.network || app.network }
      return allocatePrivateIp(tx, ctx.settings.homeNumber, from, asked)
    }
    const pools = poolsFor(ctx, type)
    const ip =
      type === 'shared_v4' ? await assignSharedIp(tx, pools, asked) : await allocateDedicatedIp(tx, pools, asked)
    if (ip === undefined) throw exhausted(type, pools)
    if (ip === null) throw conflict('the app already has the shared address')
    return ip
  })
}

export async function releaseIpOf(ctx: Context, appName: string, ip: string): Promise<void> {
  const app = await getWritableApp(ctx.db, ctx.tokenHash, appName)
  if (isIP(ip) === 0 || ip.includes('%') || !(await releaseIp(ctx.db, app.id, ip))) {
    throw notFound('the app does not have this address')
  }
}

function checkInput(input: CreateIp): IpType {
  const type = ipTypes.find((one) => one === input.type)
  if (!type) {
    throw badRequest(`${input.type} is not possible here: what machines send leaves by the address of the host`)
  }
  if (type !== 'private_v6' && input.network) throw badRequest('network goes with private_v6 only')
  if (input.network && !networkPattern.test(input.network)) {
    throw badRequest('network must start with a letter and have at most 63 letters, digits and dashes')
  }
  if (input.region?.includes('\0')) throw badRequest('region must not contain NUL characters')
  return type
}

function poolsFor(ctx: Context, type: IpType): IpPool[] {
  const family = type === 'v6' ? 6 : 4
  return parsePools(ctx.settings.ipPools).filter((pool) => pool.family === family)
}

function exhausted(type: IpType, pools: IpPool[]) {
  const kind = type === 'v6' ? 'IPv6' : 'IPv4'
  if (pools.length === 0) return badRequest(`there are no ${kind} addresses here; BERTH_IP_POOLS has none`)
  return badRequest(
    `all ${kind} addresses of ${pools.map(({ text }) => text).join(', ')} are in use; release one first`,
  )
}
