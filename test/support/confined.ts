import { readFileSync } from 'node:fs'
import { listChildren, type Process } from '../../src/drivers/host/process-list.ts'

/** The pid on the host of a process that has another pid in the namespace of its service. */
export function hostPid(service: number, inner: number): number {
  const found = descendantsOf(service).find(({ pid }) => innerPid(pid) === inner)
  if (!found) throw new Error(`service ${service} has no process ${inner}`)
  return found.pid
}

function descendantsOf(pid: number): Process[] {
  return listChildren(pid).flatMap((child) => [child, ...descendantsOf(child.pid)])
}

function innerPid(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  return Number(/^NSpid:.*\t(\d+)$/m.exec(status)?.[1])
}
