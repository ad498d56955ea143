// Values that are common for a field of some name, for the examples of the reference and of the OpenAPI documents.

type Rule<T> = readonly [RegExp, T]

const id = 'k3v9x2m7q4w8z1c5'
const ulid = '01KB3TVN5W8ZJ2Q4M7X9C1R6HD'
const digest = 'sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824'
const time = '2026-01-01T00:00:00Z'
const pem = '-----BEGIN CERTIFICATE-----\nMIIB…\n-----END CERTIFICATE-----\n'

const texts: readonly Rule<string>[] = [
  [/^(app(_name|_value)?|code|volume)$/, 'demo'],
  [/(^|_)org(anization)?(_slug|_value)?$|^(owner|raw_slug)$/, 'personal'],
  [/^slug$/, 'acme'],
  [/hostname$|^host$/, 'shop.example.com'],
  [/^database$/, 'fly-db'],
  [/^extension$/, 'pg_trgm'],
  [/^(version|instance_id)$/, ulid],
  [/(pg_newest|default|environment)_version$/, '17.6'],
  [/^from$/, '17.5'],
  [/^to$/, '17.6'],
  [/^(machine|current_machine|sourceMachine|restricted_to_machine)$|(^|_)(id|instance)$/, id],
  [/^permission_token$|^token$/, 'berth_…'],
  [/^maintenance_window$/, 'sun 03:00'],
  [/^soa$/, 'ns1.example.com'],
  [/^ownership_txt$/, 'berth-ownership=k3v9x2m7q4w8z1c5'],
  [/^nonce$/, '0f9c2ad75e3b41d8'],
  [/_at$|_until$|^(since|target|earliest|latest)$/, time],
  [/url$/, 'https://example.com'],
  [/^image_ref$|image$|^reference$/, 'docker.io/library/nginx:1.29'],
  [/^registry$/, 'docker.io'],
  [/^repository$/, 'library/nginx'],
  [/^tag$/, '1.29'],
  [/digest$/, digest],
  [/network$/, 'default'],
  [/^network_cidr$/, 'fdaa:0:1::/48'],
  [/^private_ip$/, 'fdaa:0:1:a7b:1::2'],
  [/^ip$|^a$|^resolved_addresse?$/, '203.0.113.7'],
  [/^aaaa$/, '2001:db8::7'],
  [/^address$/, '0.0.0.0:8080'],
  [/region$|^(zone|nearest)$/, 'local'],
  [/cursor$|^next(_continuation)?_token$/, 'ZGVtbw'],
  [/^(failure|problem|reason|loss|warning|remediation|gap|error|message)$/, 'A message that says what is wrong'],
  [/^(progress|data|line|output|stdout|combined)$/, 'listening on port 8080\n'],
  [/^stderr$/, ''],
  [/^answer$|^result$/, 'ok'],
  [/^source$/, 'db.example.com'],
  [/^current_table$/, 'public.orders'],
  [/^schema$/, 'public'],
  [/^(path|dest|deleted)$/, '/data/report.txt'],
  [/^(dir|workdir|directory|workingDir)$/, '/home/sprite'],
  [/^(cmd|command)$/, 'ls'],
  [/^arg$/, '-la'],
  [/^need$/, 'database'],
  [/^label$/, 'team-a'],
  [/^(user|username)$/, 'ada'],
  [/^password$/, '4mX9…'],
  [/^mode$/, '0644'],
  [/^plan$/, 'basic'],
  [/^fstype$/, 'ext4'],
  [/^(host_status|health|status)$/, 'ok'],
  [/^(host_dedication_key|new_host)$/, ''],
  [/^(state|previous_state)$/, 'started'],
  [/^kind$/, 'bubblewrap'],
  [/^auth$/, 'sprite'],
  [/^private_access$/, 'org_users'],
  [/^proto$/, 'tcp'],
  [/^provider$/, 'berth'],
  [/^(dns_provider|issuer|certificate_authority)$/, "Let's Encrypt"],
  [/^cname_target$/, 'demo.app.localhost'],
  [/^signal$/, 'SIGTERM'],
  [/^level$/, 'info'],
  [/^type$/, 'start'],
  [/^(value|key)$/, 'web'],
  [/^(comment|description)$/, 'before the upgrade'],
  [/^(certificate|fullchain)$/, pem],
  [/^private_key$/, '-----BEGIN PRIVATE KEY-----\nMIGH…\n-----END PRIVATE KEY-----\n'],
  [/^(public_key|plaintext|ciphertext|signature)$/, 'aGVsbG8='],
  [/^header$/, 'Bearer berth_…'],
  [/^(action|mutation)$/, 'read'],
  [/feature$/, 'machines'],
  [/^storage_object$/, 'uploads'],
  [/^billing_status$/, 'CURRENT'],
  [/^device$/, '/dev/vdb'],
  [/^(history|discarded|skipped|active_sprite)$/, 'demo'],
  [/sandbox/, 'my-sandbox'],
  [/name$/, 'demo'],
]

const numbers: readonly Rule<number>[] = [
  [/numeric_id$|^(orgid|appid)$/, 42],
  [/^expires_at$/, 1_767_225_600],
  [/_at$|^timestamp$/, 1_767_225_600_000],
  [/port$/, 8080],
  [/(memory|ram|limit|available)_mb$/, 512],
  [/^actual_mb$/, 256],
  [/^(disk_size_gb|storage_gb|size_gb|volume_size)$/, 10],
  [/bytes|^size$|^totalBytes$|^rss$/, 1_048_576],
  [/retention/, 7],
  [/^pid$/, 4242],
  [/^(uid|gid)$/, 1000],
  [/exit_code$|exit_signal$|^lag_|failed|errors$/, 0],
  [/^block_size$/, 4096],
  [/^blocks/, 2_560_000],
  [/^limit$|_limit$|max_/, 100],
]

/** Of several possible values, the one of a resource that works. */
const preferred = [
  ...['ready', 'completed', 'complete', 'started', 'running', 'active', 'deployed', 'attached', 'created', 'success'],
  ...['healthy', 'passing', 'ok', 'bubblewrap', 'own', '17'],
]

/** What only a resource has that does not work. Examples omit it. */
const trouble =
  /^(failure|error|problems?|gap|reason|remediation|loss|warnings?|skipped|discarded|deleted_at|rate_limited_until|incomplete_config|damage.*|unusable|upgrade)$/

export function exampleTextOf(name: string): string | undefined {
  return texts.find(([form]) => form.test(name))?.[1]
}

export function exampleNumberOf(name: string): number {
  return numbers.find(([form]) => form.test(name))?.[1] ?? 1
}

export function exampleChoiceOf(values: readonly unknown[]): unknown {
  return preferred.find((value) => values.includes(value)) ?? values[0]
}

export function exampleFlagOf(name: string): boolean {
  return !/^(cordoned|has_more|pinned|shared|egress|restricted|machine)$/.test(name)
}

export function isTrouble(name: string): boolean {
  return trouble.test(name)
}
