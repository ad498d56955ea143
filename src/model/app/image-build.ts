/** Why requests for a builder are refused. */
export const noBuilderReason =
  'this platform does not build images: build it elsewhere, push it to a registry and deploy it with --image'
