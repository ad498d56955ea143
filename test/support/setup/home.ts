import { join } from 'node:path'
import { type Home, openHome } from '../../../src/drivers/host/home.ts'
import { guardDirectory, makeDirectory } from './guard.ts'
import { share } from './shared.ts'

/** A home whose PostgreSQL installations all test files use. */
export function shareHome(): Promise<{ value: Home; release(): Promise<void> }> {
  return share('home', async () => {
    const path = makeDirectory()
    const { close } = guardDirectory(path)
    const value = await openHome(path, { uidBase: 300_000, registry: join(path, 'registry') })
    return { value, close }
  })
}
