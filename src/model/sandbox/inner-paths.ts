import { sandboxHome } from './sandbox.ts'

/** Paths that processes in a sandbox see. */
export interface InnerPaths {
  /** The scan directory of the s6 that supervises services. */
  service: string
  run: string
  log: string
  /** HOME and the working directory of commands. */
  home: string
}

/** The paths in a box that has a root filesystem of its own. */
export const innerPaths: Readonly<InnerPaths> = {
  service: '/.berth/service',
  run: '/.berth/run',
  log: '/.sprite/logs/services',
  home: sandboxHome,
}

/** The files that a service logs to, as users of the sandbox find them. */
export function serviceLogFiles(name: string): { stdout: string; stderr: string; combined: string } {
  const directory = `${innerPaths.log}/${name}`
  return { stdout: `${directory}/stdout/current`, stderr: `${directory}/stderr/current`, combined: directory }
}
