import type { Health } from '../../../model/sandbox/service-health.ts'
import { shellQuote } from '../../host/shell.ts'
import type { ScriptPaths } from '../paths.ts'
import { scriptText } from './script-text.ts'

/** Checks are frequent until the first success, because callers wait for the service to be ready. */
const firstIntervalSeconds = 0.2

/** Renders the script that `health.sh` describes. */
export function renderHealth(health: Health, state: string, { shell, path, prefix }: ScriptPaths): string {
  const seconds = health.intervalMs / 1000
  const timeout = `${prefix}timeout --foreground -k 1 ${health.timeoutMs / 1000}`
  return [
    `#!${shell}`,
    // The script has the environment of the service, whose PATH may lack the programs used here.
    ...(prefix === '' ? [`export PATH="$PATH:"${shellQuote(path)}`] : []),
    `file=${shellQuote(`${state}/health`)} prefix=${shellQuote(prefix)}`,
    `interval=${seconds} first_interval=${Math.min(firstIntervalSeconds, seconds)} threshold=${health.threshold}`,
    `check() { ${timeout} ${renderCheck(health.check, `${prefix}bash`)} </dev/null >/dev/null 2>&1 3>&-; }`,
    scriptText('health.sh'),
  ].join('\n')
}

function renderCheck(check: Health['check'], bash: string): string {
  if ('command' in check) return check.command.map(shellQuote).join(' ')
  const { port, path } = check.http
  return [bash, '-c', scriptText('http-check.sh'), 'bash', String(port), path].map(shellQuote).join(' ')
}
