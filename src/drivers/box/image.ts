import { type ImageReference, parseImageReference } from '../../model/image.ts'
import type { SandboxImage } from '../../model/sandbox/sandbox.ts'
import type { ImageStore } from '../image/driver.ts'

export async function isImageHere(images: Pick<ImageStore, 'findImage'>, { digest }: SandboxImage): Promise<boolean> {
  return digest !== null && (await images.findImage(digest)) !== undefined
}

/** What a sandbox knows of its image afterwards. */
export async function pullBoxImage(images: Pick<ImageStore, 'pullImage'>, image: SandboxImage): Promise<SandboxImage> {
  const { digest, config } = await images.pullImage(referenceOf(image))
  return { ...image, digest, env: config.env, workingDir: config.workingDir, problem: null }
}

/** What was resolved once stays: a tag may lead elsewhere by now. */
function referenceOf({ reference, digest }: SandboxImage): ImageReference {
  const parsed = parseImageReference(reference, true)
  return parsed.kind === 'registry' && digest !== null ? { ...parsed, digest } : parsed
}
