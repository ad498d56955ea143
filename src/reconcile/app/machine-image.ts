import { type Image, ImageError } from '../../drivers/image/driver.ts'
import { type MachineContainer, mainContainer } from '../../model/app/container/config.ts'
import type { ImageRef, Machine } from '../../model/app/machine.ts'
import { containerMachine } from '../../model/app/machine-spec.ts'
import { formatImageReference, type ImageReference, parseImageReference } from '../../model/image.ts'
import { recordProgress, setImages } from '../../store/app/machine-progress.ts'
import { enqueue } from '../../store/work.ts'
import { runLongCall } from '../long-call.ts'
import type { World } from '../step.ts'

interface Coming {
  is: 'coming'
  note: string
}

interface Refused {
  is: 'refused'
  reason: string
}

export type FoundImages =
  /** `machine` is the row with the resolved images; `containerImages` has those of containers by their names. */
  { is: 'here'; image: Image; containerImages: Map<string, Image>; machine: Machine } | Coming | Refused

type FoundImage = { is: 'here'; image: Image; ref: ImageRef } | Coming | Refused

/** Enough to resolve an image whose layers are all present. */
const patienceMs = 400

/** Recorded progress keeps a long pull from failing the state's deadline. */
const progressIntervalMs = 2_000

/** Finds the images of this version of a machine, or pulls them. The digests are stored before the images are used. */
export async function ensureImages(machine: Machine, world: World): Promise<FoundImages> {
  const { containers } = machine.config
  if (containers) return ensureContainerImages(machine, containers, world)
  const found = await ensureImage(machine, world)
  if (found.is !== 'here') return found
  return keepImages({ ...machine, image: found.ref }, machine, found.image, new Map(), world)
}

/** The images are pulled at the same time. Those that are resolved first keep their digest while others are pulled. */
async function ensureContainerImages(
  machine: Machine,
  containers: MachineContainer[],
  world: World,
): Promise<FoundImages> {
  const found = await Promise.all(
    containers.map(async (container) => {
      const image = await ensureImage(containerMachine(machine, container), world)
      return { name: container.name, image }
    }),
  )
  const here = found.flatMap(({ name, image }) => (image.is === 'here' ? [{ name, ...image }] : []))
  const main = here.find(({ name }) => name === mainContainer(machine.config)!.name)
  const resolved = {
    ...machine,
    image: main?.ref ?? machine.image,
    containerImages: { ...machine.containerImages, ...Object.fromEntries(here.map(({ name, ref }) => [name, ref])) },
  }
  const images = new Map(here.map(({ name, image }) => [name, image]))
  const kept = await keepImages(resolved, machine, main?.image as Image, images, world)
  const refused = found.find(({ image }) => image.is === 'refused')
  if (refused) return { is: 'refused', reason: `container ${refused.name}: ${(refused.image as Refused).reason}` }
  return found.map(({ image }) => image).find((image) => image.is === 'coming') ?? kept
}

async function keepImages(
  resolved: Machine,
  before: Machine,
  image: Image,
  containerImages: Map<string, Image>,
  world: World,
): Promise<FoundImages> {
  const isNew = (now: ImageRef | null, then: ImageRef | null | undefined) => now?.digest !== then?.digest
  const newContainers = Object.entries(resolved.containerImages ?? {}).some(([name, ref]) =>
    isNew(ref, before.containerImages?.[name]),
  )
  if (isNew(resolved.image, before.image) || newContainers) await setImages(world.db, resolved)
  return { is: 'here', image, containerImages, machine: resolved }
}

async function ensureImage(machine: Machine, world: World): Promise<FoundImage> {
  const present = machine.image && (await world.images.findImage(machine.image.digest))
  if (present) return { is: 'here', image: present, ref: machine.image! }
  const reference = referenceOf(machine)
  try {
    const name = `pull ${formatImageReference(reference)}`
    const pull = await runLongCall(world.images, name, () => pullWithProgress(machine, reference, world), {
      patienceMs,
      onEnd: () => wakeMachine(machine, world),
    })
    if (pull.is === 'running') return { is: 'coming', note: 'pulling the image' }
    return { is: 'here', image: pull.value, ref: refOf(reference, pull.value) }
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
