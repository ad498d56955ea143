// The server that the platform is compared with: Fastify, pg and one statement per request. It uses the same
// optimizations as the platform, such as named statements.
import { randomBytes } from 'node:crypto'
import Fastify from 'fastify'
import pg from 'pg'

interface Setting {
  database: pg.PoolConfig
  port: number
}

const columns = 'id, numeric_id, org_id, name, network, enable_subdomains, state, state_since, created_at'

async function serve({ database, port }: Setting): Promise<void> {
  const pool = new pg.Pool(database)
  const server = Fastify()

  server.get<{ Params: { id: string } }>('/app/:id', async (request) => {
    const text = `select ${columns} from app where id = $1`
    const { rows } = await pool.query({ name: 'get', text, values: [request.params.id] })
    return rows[0]
  })

  server.post<{ Body: { app_name: string; org_slug: string } }>('/app', async (request, reply) => {
    const text = `insert into bench_app (id, org_id, name, network, enable_subdomains)
                  values ($1, $2, $3, $4, $5) returning ${columns}`
    const id = randomBytes(8).toString('hex')
    const values = [id, request.body.org_slug, request.body.app_name, 'default', false]
    const { rows } = await pool.query({ name: 'insert', text, values })
    return reply.status(201).send(rows[0])
  })

  await server.listen({ host: '127.0.0.1', port, backlog: 1024 })
}

await serve(JSON.parse(process.argv[2]!))
