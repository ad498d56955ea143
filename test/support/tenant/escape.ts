// Attempts to leave a box, to be made in a sandbox and in a machine. Each is Perl code for escape.pl, which returns what
// happened.
import { readFileSync } from 'node:fs'
import { type Attempt, row, rows, unheard } from './attempt.ts'
import { exhausting, network } from './escape-network.ts'

/** System calls by their numbers on x86-64 and arm64. */
const calls: Record<string, [number, number | undefined]> = {
  mount: [165, 40],
  umount2: [166, 39],
  pivot_root: [155, 41],
  open_tree: [428, 428],
  move_mount: [429, 429],
  fsopen: [430, 430],
  fsconfig: [431, 431],
  fsmount: [432, 432],
  fspick: [433, 433],
  mount_setattr: [442, 442],
  setns: [308, 268],
  swapon: [167, 224],
  swapoff: [168, 225],
  reboot: [169, 142],
  init_module: [175, 105],
  finit_module: [313, 273],
  delete_module: [176, 106],
  kexec_load: [246, 104],
  kexec_file_load: [320, 294],
  acct: [163, 89],
  quotactl: [179, 60],
  syslog: [103, 116],
  settimeofday: [164, 170],
  clock_settime: [227, 112],
  clock_adjtime: [305, 266],
  adjtimex: [159, 171],
  sethostname: [170, 161],
  setdomainname: [171, 162],
  bpf: [321, 280],
  perf_event_open: [298, 241],
  add_key: [248, 217],
  request_key: [249, 218],
  keyctl: [250, 219],
  userfaultfd: [323, 282],
  open_by_handle_at: [304, 265],
  io_uring_setup: [425, 425],
  clone3: [435, 435],
  iopl: [172, undefined],
  ioperm: [173, undefined],
  modify_ldt: [154, undefined],
  fanotify_init: [300, 262],
  move_pages: [279, 239],
}

/** System calls that programs may use, for attempts with arguments. */
const usedCalls: typeof calls = {
  unshare: [272, 97],
  clone: [56, 220],
  mknodat: [259, 33],
  ptrace: [101, 117],
  pidfd_open: [434, 434],
  process_vm_readv: [310, 270],
  prlimit64: [302, 261],
  capset: [126, 91],
  prctl: [157, 167],
  setuid: [105, 146],
  fchownat: [260, 54],
  setpriority: [141, 140],
  sched_setscheduler: [144, 119],
  ioprio_set: [251, 30],
  personality: [135, 92],
  inotify_init1: [294, 26],
}

const namespaces = {
  mount: 0x20000,
  cgroup: 0x2000000,
  uts: 0x4000000,
  ipc: 0x8000000,
  user: 0x10000000,
  pid: 0x20000000,
}

const kernel: Attempt[] = [
  ...rows(Object.keys(calls), (name) => row(`calls ${name}`, `sys('${name}', 0, 0, 0, 0, 0)`, unheard)),
  ...Object.entries({ ...namespaces, net: 0x40000000, time: 0x80 }).map(([name, flag]) =>
    row(`makes a ${name} namespace`, `unshare(${flag})`, unheard),
  ),
  row('clones into a user namespace', `sys('clone', 0x10000011, 0, 0, 0, 0)`, unheard),
  row(
    'joins the mount namespace of the first process',
    `open(my $f, '<', '/proc/1/ns/mnt'); sys('setns', fileno($f) // 3, 0)`,
    unheard,
  ),
  row('mounts a file system', `sys('mount', 'none', '/tmp', 'tmpfs', 0, 0)`, unheard),
  row('binds a directory', `sys('mount', '/', '/tmp', 'none', 4096, 0)`, unheard),
  row('makes a mount writable again', `sys('mount', 'none', '/.fly', 'none', 32, 0)`, unheard),
  row('unmounts /proc', `sys('umount2', '/proc', 2)`, unheard),
  row('uses another personality', `sys('personality', 0x0200000)`, unheard),
  row('uses the x32 ABI', `my $r = syscall(0x40000000 + 39); $r < 0 ? refused() : 'allowed'`),
  row(
    'types into a terminal',
    `open(my $m, '+<', '/dev/ptmx') or return refused(); my $c = 'x'; ioctl($m, 0x5412, $c) ? 'allowed' : refused()`,
    unheard,
  ),
]

const sysctls = [
  'kernel/core_pattern',
  'kernel/modprobe',
  'kernel/pty/max',
  'kernel/pid_max',
  'kernel/hostname',
].concat(
  ['fs/file-max', 'vm/drop_caches', 'vm/overcommit_memory', 'user/max_user_namespaces', 'net/ipv4/ip_forward'],
  ['net/ipv4/conf/all/forwarding', 'net/netfilter/nf_conntrack_max', 'net/ipv4/ping_group_range'],
)
const devices = [
  'mem',
  'kmem',
  'port',
  'kmsg',
  'kvm',
  'fuse',
  'loop-control',
  'loop0',
  'vda',
  'sda',
  'net/tun',
  'vsock',
].concat(['mapper/control', 'vhost-net', 'vfio/vfio', 'uinput', 'hwrng', 'ttyS0', 'console'])
const kernelFiles = [
  'kcore',
  'kmsg',
  'vmallocinfo',
  'slabinfo',
  'timer_list',
  'kpagecount',
  'kpageflags',
  'pagetypeinfo',
]

const files: Attempt[] = [
  ...rows(sysctls, (name) => row(`changes /proc/sys/${name}`, `put('/proc/sys/${name}')`)),
  ...rows(
    [
      '/proc/sysrq-trigger',
      '/proc/self/uid_map',
      '/proc/self/gid_map',
      '/proc/irq/default_smp_affinity',
      '/proc/1/exe',
    ],
    (path) => row(`writes ${path}`, `put('${path}')`),
  ),
  ...rows(
    ['/sys/kernel/uevent_helper', '/sys/power/state', '/sys/kernel/debug/tracing/trace', '/sys/firmware/efi/efivars/x'],
    (path) => row(`writes ${path}`, `put('${path}')`),
  ),
  row('raises its protection from the kernel', `put('/proc/self/oom_score_adj', '-1000')`),
  ...rows(kernelFiles, (name) => row(`reads /proc/${name}`, `get('/proc/${name}')`)),
  row(
    'reads addresses of the kernel',
    `open(my $f, '<', '/proc/kallsyms') or return refused(); <$f> =~ /^0+ / ? 'refused' : 'allowed'`,
    /^refused/,
  ),
  ...rows(devices, (name) => row(`opens /dev/${name}`, `get('/dev/${name}')`)),
  row('makes a block device', `sys('mknodat', -100, "/tmp/block$$", 060600, 254 << 8)`, unheard),
  row('makes a device of the memory', `sys('mknodat', -100, "/tmp/memory$$", 020600, 1 << 8 | 1)`, unheard),
  ...rows(
    [
      'release_agent',
      'notify_on_release',
      'cgroup.procs',
      'tasks',
      'memory.max',
      'memory.limit_in_bytes',
      'pids.max',
      'cgroup.freeze',
    ],
    (name) =>
      row(
        `writes ${name} of a control group`,
        `my @open = grep { put("$_/${name}", "1") =~ /^allowed/ } groups(); @open ? "allowed @open" : 'refused'`,
        /^refused/,
      ),
  ),
  row(
    'makes a control group',
    `my @made = grep { mkdir "$_/own" } groups(); @made ? "allowed @made" : 'refused'`,
    /^refused/,
  ),
  row('reads the token', `get("$given{home}/token")`),
  row('reads the token through the first process', `get("/proc/1/root$given{home}/token")`),
  row(
    'reads the token through a directory',
    `my @read = grep { get("$_$given{home}/token") =~ /^allowed/ } map { ($_ . '/cwd', $_ . '/root') } processes(); @read ? "allowed @read" : 'refused'`,
    /^refused/,
  ),
  row(
    'reads the token after leaving a chroot',
    `mkdir '/tmp/jail'; opendir(my $top, '/'); chroot '/tmp/jail'; chdir $top; chdir '..' for 1 .. 50; chroot '.'; get("$given{home}/token")`,
  ),
  row('sees the directory of another box', `opendir(my $d, "$given{home}/sandbox") ? 'allowed' : refused()`),
  row(
    'connects to a database socket of the host',
    `socket(my $s, 1, 1, 0); connect($s, pack('S a*', 1, "$given{home}/run/state/.s.PGSQL.5432")) ? 'allowed' : refused()`,
  ),
  row(
    'has inherited a descriptor',
    `my @extra = grep { !m{^(pipe:|socket:|/dev/(null|pts/|ptmx)|/proc/|anon_inode:)} && $_ !~ m{^/(attempts|tmp)} } map { readlink($_) // () } entries('/proc/self/fd'); @extra ? "allowed @extra" : 'refused'`,
    /^refused/,
  ),
  row(
    'finds a descriptor of the host in a process',
    `my @extra = grep { index($_, $given{home}) >= 0 && !m{/stderr$} } map { readlink($_) // () } map { entries($_ . '/fd') } processes(); @extra ? "allowed @extra" : 'refused'`,
    /^refused/,
  ),
  row(
    'uses a setuid program',
    `my $copy = copied('/proc/self/exe', "/tmp/setuid$$"); chmod 04755, $copy; ($(, $)) = (1000, '1000 1000'); ($<, $>) = (1000, 1000); open(my $out, '-|', $copy, '-e', 'print $>') or return "failed $!"; my $uid = <$out>; $uid eq '1000' ? 'refused' : "allowed $uid"`,
    /^refused/,
  ),
]

const processes: Attempt[] = [
  row('signals a process of the host', `kill(0, $given{pid}) ? 'allowed' : refused()`, /^refused 3$/),
  row('signals a process of another box', `kill(9, $given{other_pid}) ? 'allowed' : refused()`, /^refused 3$/),
  row('traces a process of the host', `sys('ptrace', 16, $given{pid}, 0, 0)`, /^refused 3$/),
  row('traces a process of another box', `sys('ptrace', 16, $given{other_pid}, 0, 0)`, /^refused 3$/),
  row('opens a process of the host', `sys('pidfd_open', $given{pid}, 0)`, /^refused 3$/),
  row(
    'reads the memory of a process of the host',
    `my $v = pack('Q2', 0, 1); sys('process_vm_readv', $given{pid}, $v, 1, $v, 1, 0)`,
    /^refused 3$/,
  ),
  row('changes the limits of a process of the host', `sys('prlimit64', $given{pid}, 7, 0, 0)`, /^refused 3$/),
  row('lists processes of the host', `-e "/proc/$given{pid}" ? 'allowed' : 'refused'`, /^refused/),
  row(
    'raises its own limit of open files',
    `my $v = pack('Q2', 1 << 40, 1 << 40); sys('prlimit64', 0, 7, $v, 0)`,
    /^refused 1$/,
  ),
  row(
    'takes all capabilities',
    `my ($h, $s) = (pack('L l', 0x20080522, 0), pack('L6', (0xffffffff) x 6)); sys('capset', $h, $s)`,
    /^refused 1$/,
  ),
  row(
    'has capabilities over the kernel',
    `open(my $f, '<', '/proc/self/status'); my ($c) = map { /^CapEff:\\t(\\w+)/ } <$f>; hex($c) & ~0x800405fb ? "allowed $c" : 'refused'`,
    /^refused/,
  ),
  row('adds a capability for the next program', `sys('prctl', 47, 2, 21, 0, 0)`, /^refused 1$/),
  row('leaves its filter', `sys('prctl', 22, 0, 0, 0, 0)`, /^refused 22$/),
  row('becomes a user that is not of the box', `sys('setuid', 65536)`, /^refused 22$/),
  row(
    'gives a file to a user that is not of the box',
    `my $p = "/tmp/given$$"; open(my $f, '>', $p); sys('fchownat', -100, $p, 70000, 70000, 0)`,
    /^refused 22$/,
  ),
  row('takes priority over other processes', `sys('setpriority', 0, 0, -20)`, /^refused (1|13)$/),
  row('uses a real-time scheduler', `my $p = pack('l', 50); sys('sched_setscheduler', 0, 1, $p)`, /^refused 1$/),
  row('uses real-time I/O', `sys('ioprio_set', 1, 0, 1 << 13)`, /^refused 1$/),
]

export const attempts: Attempt[] = [...kernel, ...files, ...processes, ...network, ...exhausting]

const quote = (text: string) => `'${text.replaceAll(/['\\]/g, '\\$&')}'`

/** A Perl program that makes the attempts. */
export function renderAttempts(list: Attempt[], given: Record<string, string>): string {
  const column = process.arch === 'arm64' ? 1 : 0
  const numbers = Object.entries({ ...calls, ...usedCalls }).filter(([, pair]) => pair[column] !== undefined)
  return [
    `our %number = (${numbers.map(([name, pair]) => `${name} => ${pair[column]}`).join(', ')});`,
    `our %given = (${Object.entries(given)
      .map(([name, value]) => `${name} => ${quote(value)}`)
      .join(', ')});`,
    '$given{$_} += 0 for grep { /pid$/ } keys %given; # a system call takes a text for a pointer',
    // The image has Perl without its modules.
    readFileSync(new URL('escape.pl', import.meta.url), 'utf8').replace('use strict;\n', ''),
    ...list.map(({ name, code, alone }) => `attempt(${quote(name)}, sub { ${code} }, ${alone ? 60 : 3});`),
    'run_waiting();',
  ].join('\n')
}

/** The result of each attempt by its name. */
export function readResults(output: string): Map<string, string> {
  return new Map(
    output
      .trimEnd()
      .split('\n')
      .map((line) => line.split('\t') as [string, string]),
  )
}
