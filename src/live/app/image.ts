import { type ImageDescription, ImageError } from '../../drivers/image/driver.ts'
import { requireWriter } from '../../model/account/caller.ts'
import { invalid, notFound, unavailable } from '../../model/errors.ts'
import { formatImageReference, parseImageReference } from '../../model/image.ts'
import { getVisibleApp } from '../../store/app/visible.ts'
import { type LiveContext, withDeadline } from '../context.ts'

export interface ResolvedImage extends ImageDescription {
  /** With everything that was left out. */
  reference: string
}

/** What an image is now, as its registry says. Only for who might make a machine of it: it asks a host they name. */
export async function describeImage(ctx: LiveContext, appName: string, text: string): Promise<ResolvedImage> {
  const { caller } = await getVisibleApp(ctx.db, ctx.tokenHash, appName)
  requireWriter(caller)
  const reference = parseImageReference(text, false)
  const late = new AbortController()
  try {
    const found = await withDeadline(ctx.images.describeImage(reference, late.signal), 'the registry')
    return { ...found, reference: formatImageReference(reference) }
  } catch (err) {
    if (!(err instanceof ImageError)) throw err
    if (err.code === 'not_found') throw notFound(`Could not find Image: ${err.message}`)
    throw err.code === 'unreachable' ? unavailable(err.message, err) : invalid(err.message)
  } finally {
    late.abort()
  }
}
