// Checkpoints of a sandbox with many files, compared with a plain copy of these files.
import { spawnSync } from 'node:child_process'
import { chmodSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { askText, type BoxHost, execute, makeSandbox, millisOf, openBoxHost } from './box.ts'
import { until } from './child.ts'
import { settle, timeProgram } from './cluster.ts'
import { group, median, rangeText, repeat } from './framework.ts'
import type { Scope } from './scope.ts'
import { inTurn, isDisturbed } from './turn.ts'

interface Fixture extends BoxHost {
  id: string
}

const name = 'full'
const files = 10_000
const fileBytes = 50 * 1024
const size = `${Math.round((files * fileBytes) / 1e6)} MB in ${files} files`
const rounds = 5
const imageGigabytes = 8

const plain = group<Fixture>({
  setUp: async (scope) => makeFull(await openBoxHost(scope)),
  benchmarks: [
    {
      name: 'checkpoint-500mb',
      title: 'time of a checkpoint of 500 MB in 10,000 files',
      target: { atMost: 1.2 },
      async run(host) {
        const ratio = await inTurn(
          rounds,
          async () => (await timeCheckpoint(host)) / 1000,
          () => timeCopy(host),
        )
        const times = `${ratio.measured.toFixed(2)} and ${ratio.reference.toFixed(2)} s for ${size}`
        const reference = 'cp -a --reflink=auto of the layers of the sandbox'
        const { median: value, disturbed, note } = ratio
        return { value, unit: '×', reference, note: `${times}; ${note}`, disturbed }
      },
    },
  ],
})

const btrfs = group<Fixture>({
  setUp: async (scope) => makeFull(await openBoxHost(scope, await mountBtrfs(scope))),
  benchmarks: [
    {
      name: 'checkpoint-btrfs',
      title: 'time of a checkpoint of 500 MB in 10,000 files on btrfs, median',
      target: { atMost: 100 },
      async run(host) {
        const disturbed = await isDisturbed()
        const millis = await repeat(rounds, () => timeCheckpoint(host))
        const note = `${rounds} of ${size}, ${rangeText(millis, 1)} ms`
        return { value: median(millis), unit: 'ms', reference: '', note, disturbed }
      },
    },
  ],
})

export const checkpoints = [plain, btrfs]

const write = `my $part = join '', map { chr rand 256 } 1 .. ${fileBytes};
for my $directory (0 .. 99) {
  mkdir "/home/sprite/$directory";
  for my $file (1 .. ${files / 100}) {
    open my $out, '>', "/home/sprite/$directory/$file" or die $!;
    print $out $part;
  }
}`

async function makeFull(host: BoxHost): Promise<Fixture> {
  const id = await makeSandbox(host, name)
  await execute(host, name, 'perl', '-e', write)
  return { ...host, id }
}

/** Returns the milliseconds from the request to the `complete` line, and removes the checkpoint. */
async function timeCheckpoint(host: Fixture): Promise<number> {
  await settle(host)
  let answer = ''
  const millis = await millisOf(async () => {
    answer = await askText(host, 'POST', `/${name}/checkpoint`, {})
  })
  if (!answer.includes('"type":"complete"')) throw new Error(`the checkpoint failed: ${answer}`)
  const [checkpoint] = /\bv\d+\b/.exec(answer)!
  await askText(host, 'DELETE', `/${name}/checkpoints/${checkpoint}`)
  const isGone = async () => !(await askText(host, 'GET', `/${name}/checkpoints`)).includes(`"${checkpoint}"`)
  await until(isGone, `checkpoint ${checkpoint} to be gone`)
  return millis
}

/** Returns seconds. */
async function timeCopy(host: Fixture): Promise<number> {
  const directory = join(host.home, 'sandbox', host.id)
  const copy = join(host.home, 'bench-copy')
  await settle(host)
  mkdirSync(copy)
  try {
    const layers = ['upper', 'upper-usr'].map((layer) => join(directory, layer))
    return await timeProgram('cp', ['-a', '--reflink=auto', ...layers, copy])
  } finally {
    rmSync(copy, { recursive: true, force: true })
  }
}

async function mountBtrfs(scope: Scope): Promise<string> {
  const directory = mkdtempSync(join(tmpdir(), 'berth-btrfs-'))
  scope.defer(() => rmSync(directory, { recursive: true, force: true }))
  const [image, mountPoint] = [join(directory, 'image'), join(directory, 'm')]
  mkdirSync(mountPoint)
  await timeProgram('truncate', ['-s', `${imageGigabytes}G`, image])
  await timeProgram('mkfs.btrfs', ['-q', image])
  await timeProgram('mount', ['-o', 'loop', image, mountPoint])
  // Unmounts lazily, because a background process may still be deleting files.
  scope.defer(() => void spawnSync('umount', ['-l', mountPoint]))
  for (const path of [directory, mountPoint]) chmodSync(path, 0o711)
  return mountPoint
}
