import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Home, openHome } from '../../../src/drivers/host/home.ts'
import { share } from './shared.ts'

/** A home whose PostgreSQL installations all test files use. */
export function shareHome(): Promise<{ value: Home; release(): Promise<void> }> {
  return share('home', async () => {
    const path = mkdtempSync(join(tmpdir(), 'berth-test-'))
    chmodSync(path, 0o711)
    const value = await openHome(path, { uidBase: 300_000, registry: join(path, 'registry') })
    return { value, close: async () => rmSync(path, { recursive: true, force: true }) }
  })
}
