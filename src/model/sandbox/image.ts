import { type ImageReference, parseImageReference } from '../image.ts'
import type { SandboxImage } from './sandbox.ts'

/** The reference to pull. Once a digest is known it is pinned, because the tag may point to another image by now. */
export function imageToPull({ reference, digest }: SandboxImage): ImageReference {
  const parsed = parseImageReference(reference, true)
  return parsed.kind === 'registry' && digest !== null ? { ...parsed, digest } : parsed
}

/** The image with the facts that a pull found out. */
export function withPulled(
  image: SandboxImage,
  { digest, config }: { digest: string; config: { env: Record<string, string>; workingDir: string } },
): SandboxImage {
  return { ...image, digest, env: config.env, workingDir: config.workingDir, problem: null }
}
