// Creates, restores and deletes clusters with the types of openapi-typescript.
import createClient from 'openapi-fetch'
import type { paths } from './generated/openapi-typescript.ts'

const client = createClient<paths>({
  baseUrl: process.env.BERTH_URL!,
  headers: { authorization: `Bearer ${process.env.BERTH_TOKEN}` },
})

const at = (id: string) => ({ params: { path: { postgres_cluster_id: id } } })
const pause = () => new Promise((resolve) => setTimeout(resolve, 500))

async function untilReady(id: string): Promise<void> {
  for (;;) {
    const { data, error } = await client.GET('/v1/postgres/{postgres_cluster_id}', at(id))
    if (!data) throw new Error(error.error)
    if (data.data.status === 'failed') throw new Error(data.data.failure)
    if (data.data.status === 'ready') return
    await pause()
  }
}

async function untilBackup(id: string): Promise<string> {
  for (;;) {
    const { data, error } = await client.GET('/v1/postgres/{postgres_cluster_id}/backups', at(id))
    if (!data) throw new Error(error.error)
    const backup = data.data.find(({ status }) => status === 'completed')
    if (backup) return backup.id
    await pause()
  }
}

async function remove(id: string): Promise<number> {
  const { error } = await client.DELETE('/v1/postgres/{postgres_cluster_id}', at(id))
  if (error) throw new Error(error.error)
  for (;;) {
    const { response } = await client.GET('/v1/postgres/{postgres_cluster_id}', at(id))
    if (response.status !== 200) return response.status
    await pause()
  }
}

const body = { org_slug: 'personal', plan: 'basic', name: 'from-fetch', pg_major_version: '17' } as const
const created = await client.POST('/v1/postgres', { body })
if (!created.data) throw new Error(created.error.error)
const source = created.data.data.id
await untilReady(source)
const backup = await untilBackup(source)

const restored = await client.POST('/v1/postgres/{postgres_cluster_id}/restore', {
  ...at(source),
  body: { backup_id: backup, name: 'from-fetch-again' },
})
if (!restored.data) throw new Error(restored.error.error)
const copy = restored.data.data
await untilReady(copy.id)

const refused = await client.POST('/v1/postgres/{postgres_cluster_id}/restore', { ...at(source), body: {} })
const gone = [await remove(copy.id), await remove(source)]
console.log(JSON.stringify({ name: copy.name, refused: refused.response.status, gone }))
