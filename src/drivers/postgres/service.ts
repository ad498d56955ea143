import type { Supervisor } from '../s6/driver.ts'
import type { ServiceProcess } from './driver.ts'

const logLines = 20

export async function inspectProcess(supervisor: Supervisor, service: string): Promise<ServiceProcess> {
  const state = await supervisor.inspectService(service)
  if (state.is === 'absent') return { is: 'absent' }
  if (state.is === 'down') return { is: 'stopped', log: supervisor.readLog(service, logLines) }
  return { is: 'running', pid: state.pid }
}
