import { requireWriter } from '../../model/account/caller.ts'
import { callerEmail } from '../../model/account/token.ts'
import {
  type DeploymentStrategy,
  definesApp,
  keptReleases,
  maxDefinitionBytes,
  maxImageLength,
  type Release,
  releaseIdPattern,
  releaseStatusPattern,
} from '../../model/app/release.ts'
import { invalid, notFound } from '../../model/errors.ts'
import { newId } from '../../model/ids.ts'
import type { Micros } from '../../model/time.ts'
import { insertRelease, listReleases, listReleaseTimes, setReleaseStatus } from '../../store/app/release.ts'
import { appNotFound, getVisibleApp } from '../../store/app/visible.ts'
import { lockState } from '../../store/transition.ts'
import { type Context, checked, getCaller, requireToken } from '../context.ts'

export interface NewRelease {
  image: string
  strategy?: DeploymentStrategy | null
  definition?: unknown
}

export async function createRelease(ctx: Context, appName: string, input: NewRelease): Promise<Release> {
  const definition = input.definition ?? {}
  await checked(ctx, () => {
    if (input.image === '' || input.image.length > maxImageLength || input.image.includes('\0'))
      throw invalid(`image must be an image reference of at most ${maxImageLength} characters`)
    if (Buffer.byteLength(JSON.stringify(definition)) > maxDefinitionBytes)
      throw invalid(`definition must have at most ${maxDefinitionBytes} bytes`)
  })
  const { caller, app } = await getVisibleApp(ctx.db, ctx.tokenHash, appName)
  requireWriter(caller)
  return ctx.db.transaction(async (tx) => {
    if ((await lockState(tx, 'app', app.id)) !== 'active') throw appNotFound()
    const { image, strategy } = input
    const about = { id: newId(), status: 'pending', createdBy: callerEmail(caller) }
    return insertRelease(tx, app.id, { ...about, image, strategy: strategy ?? 'ROLLING', definition })
  })
}

export async function updateRelease(ctx: Context, id: string, status: string): Promise<Release> {
  const caller = await requireToken(ctx)
  requireWriter(caller)
  if (!releaseStatusPattern.test(status)) throw invalid('status must be one lowercase word such as complete')
  const release = releaseIdPattern.test(id) ? await setReleaseStatus(ctx.db, caller, id, status) : undefined
  if (!release) throw notFound('release not found')
  return release
}

/** Newest first. */
export async function listReleasesOf(ctx: Context, appName: string, limit = keptReleases): Promise<Release[]> {
  const { app } = await getVisibleApp(ctx.db, ctx.tokenHash, appName)
  return listReleases(ctx.db, app.id, Math.min(limit, keptReleases))
}

export async function findCurrentRelease(ctx: Context, appName: string): Promise<Release | undefined> {
  return (await listReleasesOf(ctx, appName, 1))[0]
}

/** The configuration with which the app was last deployed by a client that records it. */
export async function findDefinitionOf(ctx: Context, appName: string): Promise<unknown> {
  return (await listReleasesOf(ctx, appName)).find(definesApp)?.definition
}

/** The time of the last release of each app. */
export async function listReleaseTimesOf(ctx: Context): Promise<{ name: string; at: Micros }[]> {
  return listReleaseTimes(ctx.db, await getCaller(ctx))
}
