// Several projects of one run need the same server and installations. Vitest sets up each project on its own, so what
// they share is kept by the process and closed by the last project that used it.

interface Shared<T> {
  value: Promise<{ value: T; close(): Promise<void> }>
  users: number
}

const key = Symbol.for('berth.test.shared')

function registry(): Map<string, Shared<unknown>> {
  const holder = globalThis as { [key]?: Map<string, Shared<unknown>> }
  holder[key] ??= new Map()
  return holder[key]
}

export async function share<T>(
  name: string,
  open: () => Promise<{ value: T; close(): Promise<void> }>,
): Promise<{ value: T; release(): Promise<void> }> {
  const shared = (registry().get(name) ?? { value: open(), users: 0 }) as Shared<T>
  registry().set(name, shared as Shared<unknown>)
  shared.users++
  const { value, close } = await shared.value
  return {
    value,
    async release() {
      if (--shared.users > 0) return
      registry().delete(name)
      await close()
    },
  }
}
