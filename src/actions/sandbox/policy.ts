import type { Static } from 'typebox'
import {
  type NetworkPolicy,
  type NetworkPolicyBody,
  type PrivilegesPolicy,
  type ResourcesPolicy,
  readNetworkPolicy,
  readPrivileges,
  readResources,
} from '../../model/sandbox/policy.ts'
import { type Context, checked } from '../context.ts'
import { changeVisible, getVisible } from './sandbox.ts'

export async function getNetworkPolicy(ctx: Context, name: string): Promise<NetworkPolicy> {
  return (await getVisible(ctx, name)).sandbox.networkPolicy
}

export async function setNetworkPolicy(
  ctx: Context,
  name: string,
  body: Static<typeof NetworkPolicyBody>,
  refuse: () => void,
): Promise<void> {
  const networkPolicy = await checked(ctx, () => {
    refuse()
    return readNetworkPolicy(body)
  })
  await changeVisible(ctx, name, { networkPolicy })
}

/** The effective settings, including defaults. */
export async function getPrivileges(ctx: Context, name: string): Promise<PrivilegesPolicy> {
  return (await getVisible(ctx, name)).sandbox.privileges ?? { profile: 'standard' }
}

export async function setPrivileges(
  ctx: Context,
  name: string,
  body: Parameters<typeof readPrivileges>[0],
): Promise<void> {
  const privileges = await checked(ctx, () => readPrivileges(body))
  await changeVisible(ctx, name, { privileges })
}

export async function clearPrivileges(ctx: Context, name: string): Promise<void> {
  await changeVisible(ctx, name, { privileges: null })
}

/** The effective settings, including defaults. */
export async function getResources(ctx: Context, name: string): Promise<{ memoryMb: number }> {
  const { sandbox } = await getVisible(ctx, name)
  return { memoryMb: sandbox.resources?.memoryMb ?? sandbox.memoryMb }
}

export async function setResources(
  ctx: Context,
  name: string,
  body: Parameters<typeof readResources>[0],
): Promise<void> {
  const resources: ResourcesPolicy = await checked(ctx, () => readResources(body))
  await changeVisible(ctx, name, { resources })
}

export async function clearResources(ctx: Context, name: string): Promise<void> {
  await changeVisible(ctx, name, { resources: null })
}
