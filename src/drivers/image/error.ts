export type ImageErrorCode = 'not_found' | 'unauthorized' | 'damaged' | 'too_large' | 'unreachable' | 'not_supported'

/** The message is for who named the image: it says what is wrong and what would help. */
export class ImageError extends Error {
  override readonly name = 'ImageError'
  readonly code: ImageErrorCode

  constructor(code: ImageErrorCode, message: string, cause?: unknown) {
    super(message, { cause })
    this.code = code
  }
}
