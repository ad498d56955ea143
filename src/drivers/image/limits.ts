export interface ImageLimits {
  /** Of manifests and configurations. */
  maxManifestBytes: number
  maxLayers: number
  /** Unpacked, of all layers of an image. */
  maxBytes: number
  maxFiles: number
  /** How many times larger than packed a layer may become once it has more than the bytes below. */
  maxRatio: number
  maxUnguardedBytes: number
  /** What a pull leaves free on the disk. */
  reserveBytes: number
  /** Without enough bytes for so long a registry is given up. */
  stallSeconds: number
  /** Of a whole pull, also of one that a registry keeps alive drop by drop. */
  maxSeconds: number
  /** On a connection that is cut. */
  tries: number
}

export const defaultImageLimits: ImageLimits = {
  maxManifestBytes: 4 * 2 ** 20,
  maxLayers: 128,
  maxBytes: 32 * 2 ** 30,
  maxFiles: 2_000_000,
  // Text compresses to a tenth, and a file of nothing but zeros in gzip to a thousandth.
  maxRatio: 300,
  maxUnguardedBytes: 2 ** 30,
  reserveBytes: 512 * 2 ** 20,
  stallSeconds: 30,
  maxSeconds: 6 * 3600,
  tries: 3,
}
