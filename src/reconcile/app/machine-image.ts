import { type Image, ImageError } from '../../drivers/image/driver.ts'
import type { ImageRef, Machine } from '../../model/app/machine.ts'
import { formatImageReference, type ImageReference, parseImageReference } from '../../model/image.ts'
import { noteProgress, setImage } from '../../store/app/machine-change.ts'
import { enqueue } from '../../store/work.ts'
import type { World } from '../step.ts'
import { underway } from '../underway.ts'

export type FoundImage =
  /** With the machine as it knows its image now. */
  { is: 'here'; image: Image; machine: Machine } | { is: 'coming'; note: string } | { is: 'refused'; reason: string }

/** A pull of what is there already is over before. */
const patienceMs = 400

/** How often the progress of a pull is written down, which keeps it from counting as stuck. */
const progressMs = 2_000

/** The image of this version of a machine, pulled if it is not here. Which one it is is kept before it is used. */
export async function ensureImage(machine: Machine, world: World): Promise<FoundImage> {
  const here = machine.image && (await world.images.findImage(machine.image.digest))
  if (here) return { is: 'here', image: here, machine }
  const reference = referenceOf(machine)
  try {
    const name = `pull ${formatImageReference(reference)}`
    const pull = await underway(world.images, name, () => pullNoting(machine, reference, world), {
      patienceMs,
      onEnd: () => wake(machine, world),
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

/** What was resolved once stays: a tag may lead elsewhere by now. */
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

function pullNoting(machine: Machine, reference: ImageReference, world: World): Promise<Image> {
  let notedAt = performance.now()
  return world.images.pullImage(reference, (done, total) => {
    if (performance.now() - notedAt < progressMs) return
    notedAt = performance.now()
    const megabytes = (bytes: number) => Math.round(bytes / 1e6)
    const note = `pulling the image: ${megabytes(done)} of ${megabytes(total)} MB`
    noteProgress(world.db, machine.id, note).catch(() => {}) // the next one tells
  })
}

/** Its next look need not be waited for. */
export function wake({ id }: Pick<Machine, 'id'>, world: World): void {
  world.db.transaction((tx) => enqueue(tx, 'machine', id)).catch(() => {}) // the look that is due anyway comes later
}
