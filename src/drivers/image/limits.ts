export interface ImageLimits {
  /** Applies to each manifest and each configuration. */
  maxManifestBytes: number
  maxLayers: number
  /** The unpacked size of all layers of an image. */
  maxBytes: number
  maxFiles: number
  /** The compression ratio above which a layer is refused, once it has more than `maxUnguardedBytes`. */
  maxRatio: number
  maxUnguardedBytes: number
  /** The free disk space that a pull must leave. */
  reserveBytes: number
  /** A registry that sends almost nothing for this long is given up. */
  stallSeconds: number
  /** The limit for a whole pull, which ends downloads that are slow but never stall. */
  maxSeconds: number
  /** The attempts for each request when connections break. */
  maxTries: number
}

export const defaultImageLimits: ImageLimits = {
  maxManifestBytes: 4 * 2 ** 20,
  maxLayers: 128,
  maxBytes: 32 * 2 ** 30,
  maxFiles: 2_000_000,
  // Text compresses to about a tenth; gzip compresses a file of zeros to a thousandth.
  maxRatio: 300,
  maxUnguardedBytes: 2 ** 30,
  reserveBytes: 512 * 2 ** 20,
  stallSeconds: 30,
  maxSeconds: 6 * 3600,
  maxTries: 3,
}
