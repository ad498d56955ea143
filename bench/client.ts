// Replaces wrk where it is not installed, with the same plan, number of connections and output.
import { readFileSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { connections, type LoadResult } from './load.ts'

interface Plan {
  method: string
  authorization: string
  prefix: string
  body: string
  paths: string[]
}

function readPlan(file: string): Plan {
  const [method, authorization, prefix, body, ...paths] = readFileSync(file, 'utf8').trimEnd().split('\n')
  return { method: method!, authorization: authorization!, prefix: prefix!, body: body!, paths }
}

function ask(url: string, plan: Plan, agent: Agent, turn: number): Promise<boolean> {
  const { method, authorization, prefix, body, paths } = plan
  return new Promise((resolve) => {
    const headers = { authorization, ...(body ? { 'content-type': 'application/json' } : {}) }
    const sent = request(url + paths[turn % paths.length], { method, agent, headers }, (reply) => {
      reply.on('end', () => resolve(reply.statusCode! < 400))
      reply.resume()
    })
    sent.on('error', () => resolve(false))
    sent.end(body ? body.replaceAll('{n}', `${prefix}${turn}`) : undefined)
  })
}

async function load(url: string, plan: Plan, seconds: number): Promise<LoadResult> {
  const agent = new Agent({ keepAlive: true, maxSockets: connections })
  const started = performance.now()
  let turn = 0
  let failed = 0
  const askOn = async () => {
    while (performance.now() - started < seconds * 1000) {
      if (!(await ask(url, plan, agent, turn++))) failed += 1
    }
  }
  await Promise.all(Array.from({ length: connections }, askOn))
  const took = (performance.now() - started) / 1000
  agent.destroy()
  return { requests: turn, seconds: took, failed }
}

const [url, plan, seconds] = process.argv.slice(2)
console.log(JSON.stringify(await load(url!, readPlan(plan!), Number(seconds))))
