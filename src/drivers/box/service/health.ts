import type { Health } from '../../../model/sandbox/service-health.ts'
import { quote } from '../../host/shell.ts'
import type { ScriptPlaces } from '../paths.ts'

// bash can open a connection by itself; every other client may be missing in a box.
const httpCheck = [
  'exec 5<>"/dev/tcp/127.0.0.1/$1" || exit 1',
  `printf 'GET %s HTTP/1.1\\r\\nHost: localhost:%s\\r\\nUser-Agent: berth-health\\r\\nConnection: close\\r\\n\\r\\n' "$2" "$1" >&5`,
  'read -r version code rest <&5 || exit 1',
  'case $code in 2?? | 3??) exit 0 ;; esac',
  'exit 1',
].join('\n')

/** Until it is ready it is looked at more often, because somebody waits for it. */
const firstSeconds = 0.2

/**
 * A program that runs beside the service as long as it lives, in its process group. It writes `healthy` and `unhealthy`
 * to a file when that changes, and says on descriptor 3 when it was healthy for the first time.
 */
export function renderHealth(health: Health, state: string, { shell, path, prefix }: ScriptPlaces): string {
  const seconds = health.intervalMs / 1000
  const limit = `${prefix}timeout --foreground -k 1 ${health.timeoutMs / 1000}`
  return [
    `#!${shell}`,
    // Its environment is that of the service, which may have a PATH without the programs used here.
    ...(prefix === '' ? [`export PATH="$PATH:"${quote(path)}`] : []),
    `file=${quote(`${state}/health`)}`,
    `check() { ${limit} ${renderCheck(health.check, `${prefix}bash`)} </dev/null >/dev/null 2>&1 3>&-; }`,
    'known= failures=0',
    'while :; do',
    '  if check; then',
    '    failures=0 now=healthy',
    '    [ -n "$known" ] || { echo >&3; exec 3>&-; }',
    '  else',
    '    failures=$((failures + 1)) now=$known',
    `    [ $failures -ge ${health.threshold} ] && [ -n "$known" ] && now=unhealthy`,
    '  fi',
    '  [ "$now" = "$known" ] || echo "$now" > "$file"',
    '  known=$now',
    `  if [ -n "$known" ]; then ${prefix}sleep ${seconds}; else ${prefix}sleep ${Math.min(firstSeconds, seconds)}; fi`,
    'done',
    '',
  ].join('\n')
}

function renderCheck(check: Health['check'], bash: string): string {
  if ('command' in check) return check.command.map(quote).join(' ')
  return [bash, '-c', httpCheck, 'bash', String(check.http.port), check.http.path].map(quote).join(' ')
}
