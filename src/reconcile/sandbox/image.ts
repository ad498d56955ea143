import { isImageHere, pullBoxImage } from '../../drivers/box/image.ts'
import { ImageError } from '../../drivers/image/driver.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import { setSandboxImage } from '../../store/sandbox/sandbox-change.ts'
import { enqueue } from '../../store/work.ts'
import { type StepResult, type World, wait } from '../step.ts'
import { underway } from '../underway.ts'

/** A pull of what is there already is over before. */
const patienceMs = 400
const lookSeconds = 5

/** A registry may have it later. */
const againSeconds = 30

export type WithImage = { is: 'here'; sandbox: Sandbox } | { is: 'away'; result: StepResult<never> }

/** The sandbox with its image on this host, pulled if it is not here, or what to answer meanwhile. */
export async function ensureSandboxImage(sandbox: Sandbox, world: World): Promise<WithImage> {
  const { image } = sandbox
  if (!image || (await isImageHere(world.images, image))) return { is: 'here', sandbox }
  try {
    const pull = await underway(
      world.images,
      `pull for sandbox ${sandbox.id}`,
      () => pullBoxImage(world.images, image),
      { patienceMs, onEnd: () => lookAgain(sandbox, world) },
    )
    if (pull.is === 'running') return { is: 'away', result: wait(lookSeconds, 'pulling the image') }
    await setSandboxImage(world.db, sandbox.id, pull.value)
    return { is: 'here', sandbox: { ...sandbox, image: pull.value } }
  } catch (error) {
    if (!(error instanceof ImageError)) throw error
    const problem = error.message
    const save = (tx: Parameters<typeof setSandboxImage>[0]) => setSandboxImage(tx, sandbox.id, { ...image, problem })
    return { is: 'away', result: wait(againSeconds, `the image cannot be pulled: ${problem}`, save) }
  }
}

function lookAgain({ id }: Sandbox, { db }: World): void {
  db.transaction((tx) => enqueue(tx, 'sandbox', id)).catch(() => {}) // the look that is due anyway comes later
}
