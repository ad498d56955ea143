import type { ImageConfig, ImageReference } from '../../model/image.ts'

/** An image all of whose layers are unpacked on this host. */
export interface Image {
  /** The digest of the manifest for this host's platform. */
  digest: string
  /** Directories with the unpacked layers, lowest first. */
  layers: string[]
  config: ImageConfig
  /** The unpacked size of all layers. */
  bytes: number
}

export interface ImageDescription {
  digest: string
  /** The compressed size of all layers, as they are downloaded. */
  packedBytes: number
  manifest: Record<string, unknown>
}

export interface ImageEntry {
  digest: string
  reference: string
  /** The unpacked size of all layers. */
  bytes: number
  /** Milliseconds since 1970. */
  pulledAt: number
}

export type OnProgress = (done: number, total: number) => void

export interface ImageStore {
  /**
   * Resolves the reference, downloads the missing layers and unpacks each of them once. Calling it again is harmless, and
   * concurrent pulls of the same layer share the download. Progress counts the compressed bytes of the missing layers.
   */
  pullImage(reference: ImageReference, onProgress?: OnProgress, signal?: AbortSignal): Promise<Image>
  /** Describes what a pull would download, without downloading any layer. */
  describeImage(reference: ImageReference, signal: AbortSignal): Promise<ImageDescription>
  /** Finds an image by its digest; undefined unless all of its layers are present. */
  findImage(digest: string): Promise<Image | undefined>
  listImages(): Promise<ImageEntry[]>
  /** Removes images not in `used` and layers that no remaining image needs, except those being pulled. */
  collectImages(used: ReadonlySet<string>): Promise<{ images: number; layers: number; bytes: number }>
}

export type ImageErrorCode = 'not_found' | 'unauthorized' | 'damaged' | 'too_large' | 'unreachable' | 'not_supported'

/** The message is shown to the user who named the image: it says what is wrong and what would help. */
export class ImageError extends Error {
  override readonly name = 'ImageError'
  readonly code: ImageErrorCode

  constructor(code: ImageErrorCode, message: string, cause?: unknown) {
    super(message, { cause })
    this.code = code
  }
}
