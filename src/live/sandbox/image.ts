import { isImageHere, pullBoxImage } from '../../drivers/box/image.ts'
import { ImageError } from '../../drivers/image/driver.ts'
import { type BerthError, conflict, unavailable } from '../../model/errors.ts'
import type { Sandbox, SandboxImage } from '../../model/sandbox/sandbox.ts'
import { setSandboxImage } from '../../store/sandbox/sandbox-change.ts'
import type { LiveContext } from '../context.ts'

/** A larger image takes longer; whoever asks again finds what has come. */
const pullSeconds = 60

/** The sandbox with its image on this host, pulled if it is not here. Nothing is done for one without. */
export async function withImage<T extends Sandbox>(ctx: LiveContext, sandbox: T): Promise<T> {
  const { image } = sandbox
  if (!image || (await isImageHere(ctx.images, image))) return sandbox
  if ((await ctx.boxes.isolation()).kind === 'none')
    throw conflict('this sandbox begins with an image, which needs namespaces, and there are none on this machine')
  try {
    const pulled = await withinPatience(pullBoxImage(ctx.images, image))
    await setSandboxImage(ctx.db, sandbox.id, pulled)
    return { ...sandbox, image: pulled }
  } catch (error) {
    if (!(error instanceof ImageError)) throw error
    await setSandboxImage(ctx.db, sandbox.id, { ...image, problem: error.message })
    throw asRefusal(error, image)
  }
}

function asRefusal(error: ImageError, { reference }: SandboxImage): BerthError {
  const message = `the image ${reference} of this sandbox cannot be pulled: ${error.message}`
  return error.code === 'unreachable' ? unavailable(message, error) : conflict(message, { status: 'image_unusable' })
}

/** The pull itself goes on. */
async function withinPatience(pull: Promise<SandboxImage>): Promise<SandboxImage> {
  const { promise: late, reject } = Promise.withResolvers<never>()
  const message = 'the image of this sandbox is still being pulled; try again in a moment'
  const timer = setTimeout(() => reject(unavailable(message)), pullSeconds * 1000)
  pull.catch(() => undefined) // nobody may be waiting any more
  try {
    return await Promise.race([pull, late])
  } finally {
    clearTimeout(timer)
  }
}
