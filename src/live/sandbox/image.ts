import { ImageError } from '../../drivers/image/driver.ts'
import { type BerthError, conflict, unavailable } from '../../model/errors.ts'
import { imageToPull, withPulled } from '../../model/sandbox/image.ts'
import type { Sandbox, SandboxImage } from '../../model/sandbox/sandbox.ts'
import { setSandboxImage } from '../../store/sandbox/sandbox-change.ts'
import type { LiveContext } from '../context.ts'

/** A pull that takes longer continues; the caller is asked to try again. */
const maxWaitSeconds = 60

/** Pulls the image of the sandbox if it has one that is not on this host. */
export async function withImage<T extends Sandbox>(ctx: LiveContext, sandbox: T): Promise<T> {
  const { image } = sandbox
  if (!image || (image.digest !== null && (await ctx.images.findImage(image.digest)))) return sandbox
  if ((await ctx.boxes.isolation()).kind === 'none')
    throw conflict('this sandbox begins with an image, which needs namespaces, and there are none on this machine')
  try {
    const pulled = withPulled(image, await withTimeout(ctx.images.pullImage(imageToPull(image))))
    await setSandboxImage(ctx.db, sandbox.id, pulled)
    return { ...sandbox, image: pulled }
  } catch (error) {
    if (!(error instanceof ImageError)) throw error
    await setSandboxImage(ctx.db, sandbox.id, { ...image, problem: error.message })
    throw apiError(error, image)
  }
}

function apiError(error: ImageError, { reference }: SandboxImage): BerthError {
  const message = `the image ${reference} of this sandbox cannot be pulled: ${error.message}`
  return error.code === 'unreachable' ? unavailable(message, error) : conflict(message, { status: 'image_unusable' })
}

/** A timeout does not stop the pull. */
async function withTimeout<T>(pull: Promise<T>): Promise<T> {
  const { promise: timeout, reject } = Promise.withResolvers<never>()
  const message = 'the image of this sandbox is still being pulled; try again in a moment'
  const timer = setTimeout(() => reject(unavailable(message)), maxWaitSeconds * 1000)
  pull.catch(() => undefined) // a failure after the timeout is not reported
  try {
    return await Promise.race([pull, timeout])
  } finally {
    clearTimeout(timer)
  }
}
