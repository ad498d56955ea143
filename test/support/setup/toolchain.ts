import type { TestProject } from 'vitest/node'
import { ensureTemplate } from '../../../src/drivers/postgres/template.ts'
import { ensureToolchain } from '../../../src/drivers/postgres/toolchain/toolchain.ts'
import { ensureTools } from '../../../src/drivers/postgres/toolchain/tools.ts'
import { postgresMajors } from '../../../src/model/postgres/cluster.ts'
import { shareHome } from './home.ts'
import { share } from './shared.ts'

/** Provides PostgreSQL of both majors with client programs and cluster templates, made once for all homes of the tests. */
export async function setup(project: TestProject): Promise<() => Promise<void>> {
  const home = await shareHome()
  const made = await share('toolchain', async () => {
    for (const major of postgresMajors) {
      const toolchain = await ensureToolchain(major, home.value)
      await ensureTemplate(toolchain, home.value)
      await ensureTools(toolchain)
    }
    return { value: home.value.toolchain, close: async () => {} }
  })
  project.provide('toolchain', made.value)
  return async () => {
    await made.release()
    await home.release()
  }
}
