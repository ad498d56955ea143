import type { TestProject } from 'vitest/node'
import { ensureBase } from '../../../src/drivers/box/base.ts'
import { ensureTemplate } from '../../../src/drivers/postgres/template.ts'
import { ensureToolchain } from '../../../src/drivers/postgres/toolchain/toolchain.ts'
import { ensureTools } from '../../../src/drivers/postgres/toolchain/tools.ts'
import { postgresMajors } from '../../../src/model/postgres/cluster.ts'
import { shareHome } from './home.ts'
import { share } from './shared.ts'

/**
 * Provides what takes long at the first start of a home, made once for the homes of all tests: PostgreSQL of both majors
 * with client programs and cluster templates, and the base layer of sandboxes.
 */
export async function setup(project: TestProject): Promise<() => Promise<void>> {
  const home = await shareHome()
  const made = await share('toolchain', async () => {
    for (const major of postgresMajors) {
      const toolchain = await ensureToolchain(major, home.value)
      await ensureTemplate(toolchain, home.value)
      await ensureTools(toolchain)
    }
    await ensureBase(home.value)
    return { value: home.value.path, close: async () => {} }
  })
  project.provide('preparedHome', made.value)
  return async () => {
    await made.release()
    await home.release()
  }
}
