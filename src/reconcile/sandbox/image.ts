import { ImageError } from '../../drivers/image/driver.ts'
import { imageToPull, withPulled } from '../../model/sandbox/image.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import { setSandboxImage } from '../../store/sandbox/sandbox-change.ts'
import { enqueue } from '../../store/work.ts'
import { runLongCall } from '../long-call.ts'
import { type StepResult, type World, wait } from '../step.ts'

/** Long enough for a pull that finds all layers on this host. */
const patienceMs = 400
const pollSeconds = 5

/** The image may appear in the registry later. */
const retrySeconds = 30

export type WithImage = { is: 'here'; sandbox: Sandbox } | { is: 'away'; result: StepResult<never> }

/** Pulls the image of the sandbox if it is not on this host. Until that is done, returns the result of the step. */
export async function ensureSandboxImage(sandbox: Sandbox, world: World): Promise<WithImage> {
  const { image } = sandbox
  if (!image || (image.digest !== null && (await world.images.findImage(image.digest)))) return { is: 'here', sandbox }
  try {
    const pull = await runLongCall(
      world.images,
      `pull for sandbox ${sandbox.id}`,
      () => world.images.pullImage(imageToPull(image)),
      { patienceMs, onEnd: () => enqueueSandbox(sandbox, world) },
    )
    if (pull.is === 'running') return { is: 'away', result: wait(pollSeconds, 'pulling the image') }
    const pulled = withPulled(image, pull.value)
    await setSandboxImage(world.db, sandbox.id, pulled)
    return { is: 'here', sandbox: { ...sandbox, image: pulled } }
  } catch (error) {
    if (!(error instanceof ImageError)) throw error
    const problem = error.message
    const save = (tx: Parameters<typeof setSandboxImage>[0]) => setSandboxImage(tx, sandbox.id, { ...image, problem })
    return { is: 'away', result: wait(retrySeconds, `the image cannot be pulled: ${problem}`, save) }
  }
}

function enqueueSandbox({ id }: Sandbox, { db }: World): void {
  db.transaction((tx) => enqueue(tx, 'sandbox', id)).catch(() => {}) // the step is due later anyway
}
