import { type Image, ImageError } from '../../drivers/image/driver.ts'
import type { ImageRef, Machine } from '../../model/app/machine.ts'
import { formatImageReference, type ImageReference, parseImageReference } from '../../model/image.ts'
import { recordProgress, setImage } from '../../store/app/machine-progress.ts'
import { enqueue } from '../../store/work.ts'
import { runLongCall } from '../long-call.ts'
import type { World } from '../step.ts'

export type FoundImage =
  /** `machine` is the row with the resolved image. */
  { is: 'here'; image: Image; machine: Machine } | { is: 'coming'; note: string } | { is: 'refused'; reason: string }

/** Enough to resolve an image whose layers are all present. */
const patienceMs = 400

/** Recorded progress keeps a long pull from failing the state's deadline. */
const progressIntervalMs = 2_000

/** Finds the image of this version of a machine, or pulls it. The digest is stored before the image is used. */
export async function ensureImage(machine: Machine, world: World): Promise<FoundImage> {
  const present = machine.image && (await world.images.findImage(machine.image.digest))
  if (present) return { is: 'here', image: present, machine }
  const reference = referenceOf(machine)
  try {
    const name = `pull ${formatImageReference(reference)}`
    const pull = await runLongCall(world.images, name, () => pullWithProgress(machine, reference, world), {
      patienceMs,
      onEnd: () => wakeMachine(machine, world),
    })
    if (pull.is === 'running') return { is: 'coming', note: 'pulling the image' }
    const image = pull.value
    const ref = refOf(reference, image)
    await setImage(world.db, machine.id, machine.instanceId, ref)
    return { is: 'here', image, machine: { ...machine, image: ref } }
  } catch (error) {
    if (error instanceof ImageError) return { is: 'refused', reason: error.message }
    throw error
  }
}

/** Pins the digest that was resolved first, because the tag may have moved since. */
function referenceOf({ config, image }: Machine): ImageReference {
  const reference = parseImageReference(config.image, true)
  if (reference.kind !== 'registry' || !image) return reference
  return { ...reference, digest: image.digest }
}

function refOf(reference: ImageReference, { digest, config }: Image): ImageRef {
  const { labels } = config
  if (reference.kind === 'registry') {
    return { registry: reference.registry, repository: reference.repository, tag: reference.tag ?? '', digest, labels }
  }
  const repository = reference.kind === 'layout' ? reference.directory : reference.file
  return { registry: '', repository, tag: (reference.kind === 'layout' && reference.tag) || '', digest, labels }
}

function pullWithProgress(machine: Machine, reference: ImageReference, world: World): Promise<Image> {
  let recordedAt = performance.now()
  return world.images.pullImage(reference, (done, total) => {
    if (performance.now() - recordedAt < progressIntervalMs) return
    recordedAt = performance.now()
    const megabytes = (bytes: number) => Math.round(bytes / 1e6)
    const note = `pulling the image: ${megabytes(done)} of ${megabytes(total)} MB`
    recordProgress(world.db, machine.id, note).catch(() => {}) // the next progress is recorded instead
  })
}

/** Runs the machine's step soon instead of at its next scheduled time. */
export function wakeMachine({ id }: Pick<Machine, 'id'>, world: World): void {
  world.db.transaction((tx) => enqueue(tx, 'machine', id)).catch(() => {}) // the scheduled step runs later
}
