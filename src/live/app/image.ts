import { type ImageDescription, ImageError } from '../../drivers/image/driver.ts'
import { requireWriter } from '../../model/account/caller.ts'
import { invalid, notFound, unavailable } from '../../model/errors.ts'
import { formatImageReference, parseImageReference } from '../../model/image.ts'
import { getVisibleApp } from '../../store/app/visible.ts'
import { type LiveContext, withDeadline } from '../context.ts'

export interface ResolvedImage extends ImageDescription {
  /** The complete reference, with defaults filled in. */
  reference: string
}

/**
 * Resolves an image at its registry. It needs write access to the app, because it makes the platform connect to a host
 * that the caller names.
 */
export async function describeImage(ctx: LiveContext, appName: string, text: string): Promise<ResolvedImage> {
  const { caller } = await getVisibleApp(ctx.db, ctx.tokenHash, appName)
  requireWriter(caller)
  const reference = parseImageReference(text, false)
  const cancel = new AbortController()
  try {
    const found = await withDeadline(ctx.images.describeImage(reference, cancel.signal), 'the registry')
    return { ...found, reference: formatImageReference(reference) }
  } catch (err) {
    if (!(err instanceof ImageError)) throw err
    if (err.code === 'not_found') throw notFound(`Could not find Image: ${err.message}`)
    throw err.code === 'unreachable' ? unavailable(err.message, err) : invalid(err.message)
  } finally {
    cancel.abort()
  }
}
