// The seccomp filter of boxes. It is a deny-list, because programs of all kinds must run and the user namespace is what
// confines them. It blocks parts of the kernel that programs rarely need and that most container escapes used.
export type Machine = 'x64' | 'arm64'

const eperm = 1
const enosys = 38
const eafnosupport = 97

interface Refusal {
  x64?: number
  arm64?: number
  errno: number
}

const refused = (errno: number, x64: number | undefined, arm64: number | undefined): Refusal => ({
  errno,
  ...(x64 !== undefined && { x64 }),
  ...(arm64 !== undefined && { arm64 }),
})

/** System calls that are always refused; with ENOSYS where programs then fall back to another one. */
const calls: Record<string, Refusal> = {
  mount: refused(eperm, 165, 40),
  umount2: refused(eperm, 166, 39),
  pivot_root: refused(eperm, 155, 41),
  open_tree: refused(eperm, 428, 428),
  move_mount: refused(eperm, 429, 429),
  fsopen: refused(eperm, 430, 430),
  fsconfig: refused(eperm, 431, 431),
  fsmount: refused(eperm, 432, 432),
  fspick: refused(eperm, 433, 433),
  mount_setattr: refused(eperm, 442, 442),
  open_tree_attr: refused(eperm, 467, 467),
  setns: refused(eperm, 308, 268),
  swapon: refused(eperm, 167, 224),
  swapoff: refused(eperm, 168, 225),
  reboot: refused(eperm, 169, 142),
  init_module: refused(eperm, 175, 105),
  finit_module: refused(eperm, 313, 273),
  delete_module: refused(eperm, 176, 106),
  create_module: refused(enosys, 174, undefined),
  get_kernel_syms: refused(enosys, 177, undefined),
  query_module: refused(enosys, 178, undefined),
  kexec_load: refused(eperm, 246, 104),
  kexec_file_load: refused(eperm, 320, 294),
  acct: refused(eperm, 163, 89),
  quotactl: refused(eperm, 179, 60),
  quotactl_fd: refused(eperm, 443, 443),
  syslog: refused(eperm, 103, 116),
  settimeofday: refused(eperm, 164, 170),
  clock_settime: refused(eperm, 227, 112),
  clock_adjtime: refused(eperm, 305, 266),
  adjtimex: refused(eperm, 159, 171),
  sethostname: refused(eperm, 170, 161),
  setdomainname: refused(eperm, 171, 162),
  bpf: refused(eperm, 321, 280),
  perf_event_open: refused(eperm, 298, 241),
  add_key: refused(eperm, 248, 217),
  request_key: refused(eperm, 249, 218),
  keyctl: refused(eperm, 250, 219),
  userfaultfd: refused(enosys, 323, 282),
  open_by_handle_at: refused(eperm, 304, 265),
  io_uring_setup: refused(enosys, 425, 425),
  io_uring_enter: refused(enosys, 426, 426),
  io_uring_register: refused(enosys, 427, 427),
  // A filter cannot read its flags, which are in memory. The C library falls back to clone.
  clone3: refused(enosys, 435, 435),
  iopl: refused(eperm, 172, undefined),
  ioperm: refused(eperm, 173, undefined),
  modify_ldt: refused(eperm, 154, undefined),
  vhangup: refused(eperm, 153, 58),
  lookup_dcookie: refused(eperm, 212, 18),
  fanotify_init: refused(eperm, 300, 262),
  nfsservctl: refused(enosys, 180, 42),
  _sysctl: refused(enosys, 156, undefined),
  sysfs: refused(enosys, 139, undefined),
  uselib: refused(enosys, 134, undefined),
  move_pages: refused(eperm, 279, 239),
}

interface Examined {
  x64: number
  arm64: number
  argument: number
  rule: (then: { allow: string; refuse: string }) => Step[]
  errno: number
}

const cloneFlags = {
  time: 0x80,
  mount: 0x2_0000,
  cgroup: 0x200_0000,
  uts: 0x400_0000,
  ipc: 0x800_0000,
  user: 0x1000_0000,
  pid: 0x2000_0000,
  net: 0x4000_0000,
}
const allNamespaces = Object.values(cloneFlags).reduce((all, flag) => all | flag, 0)

// AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Others reach the hypervisor or rarely reviewed parts of the kernel.
const families = [1, 2, 10, 16]
// PER_LINUX, PER_LINUX32, each also with ADDR_NO_RANDOMIZE (for debuggers), and the query for the current value.
const personalities = [0, 8, 0x4_0000, 0x4_0008, 0xffff_ffff]
// TIOCSTI and TIOCLINUX inject input into a terminal.
const terminalInjections = [0x5412, 0x541c]
// A Btrfs subvolume has a quota group of its own and would not count against the limit of the box. These create, snapshot
// and remove subvolumes and change quota groups; FICLONE and its relatives have the same type and stay allowed.
const subvolumeChanges = [
  0x5000_9401, 0x5000_940e, 0x5000_940f, 0x5000_9417, 0x5000_9418, 0x5000_943f, 0x4008_941a, 0xc010_9428, 0x4018_9429,
  0x4010_942a, 0x8030_942b,
]
// FS_IOC_FSSETXATTR and FS_IOC_SETFLAGS change the project that a file counts for. The kernel itself refuses that in a user
// namespace.
const projectChanges = [0x401c_5820, 0x4008_6602]

/** System calls that are refused depending on the lower 32 bits of one argument. */
const examined: Record<string, Examined> = {
  clone: {
    x64: 56,
    arm64: 220,
    argument: 0,
    errno: eperm,
    // In clone, the lowest eight bits are the exit signal and not flags.
    rule: ({ refuse, allow }) => [jumpIfAny(allNamespaces & ~0xff, refuse, allow)],
  },
  unshare: {
    x64: 272,
    arm64: 97,
    argument: 0,
    errno: eperm,
    rule: ({ refuse, allow }) => [jumpIfAny(allNamespaces, refuse, allow)],
  },
  socket: { x64: 41, arm64: 198, argument: 0, errno: eafnosupport, rule: only(families) },
  socketpair: { x64: 53, arm64: 199, argument: 0, errno: eafnosupport, rule: only(families) },
  personality: { x64: 135, arm64: 92, argument: 0, errno: eperm, rule: only(personalities) },
}

function ioctlExcept(values: number[]): Examined {
  const rule: Examined['rule'] = ({ refuse, allow }) => [...values.map((value) => jumpIf(value, refuse)), jump(allow)]
  return { x64: 16, arm64: 29, argument: 1, errno: eperm, rule }
}

function only(values: number[]): Examined['rule'] {
  return ({ allow, refuse }) => [...values.map((value) => jumpIf(value, allow)), jump(refuse)]
}

// Offsets in struct seccomp_data: call number, architecture, instruction pointer, six 64-bit arguments.
const numberAt = 0
const architectureAt = 4
const argumentAt = (index: number) => 16 + 8 * index

const architectures: Record<Machine, number> = { x64: 0xc000_003e, arm64: 0xc000_00b7 }
// System calls of the x32 ABI have numbers of their own, starting here.
const firstX32 = 0x4000_0000

const action = { allow: 0x7fff_0000, errno: 0x0005_0000, kill: 0x8000_0000 }

type Instruction = { code: number; value: number; yes?: string; no?: string }
type Step = Instruction | { label: string }

const load = (at: number): Step => ({ code: 0x20, value: at })
const answer = (value: number): Step => ({ code: 0x06, value })
const jumpIf = (value: number, yes: string, no?: string): Step => ({ code: 0x15, value, yes, ...(no && { no }) })
const jumpIfAtLeast = (value: number, yes: string): Step => ({ code: 0x35, value, yes })
const jumpIfAny = (bits: number, yes: string, no: string): Step => ({ code: 0x45, value: bits, yes, no })
const jump = (to: string): Step => ({ code: 0x05, value: 0, yes: to })

/**
 * Assembles the filter as struct sock_filter instructions, which bwrap and prctl(2) take. A program without a user namespace
 * of its own needs `keepsProjects`.
 */
export function seccompFilter(machine: Machine, { keepsProjects = false } = {}): Buffer {
  const ioctls = [...terminalInjections, ...subvolumeChanges, ...(keepsProjects ? projectChanges : [])]
  const examinedCalls = { ...examined, ioctl: ioctlExcept(ioctls) }
  return assemble([
    load(architectureAt),
    jumpIf(architectures[machine], 'native'),
    answer(action.kill),
    { label: 'native' },
    load(numberAt),
    ...(machine === 'x64' ? refuseX32() : []),
    ...Object.values(calls).flatMap((call) => refuse(call[machine], call.errno)),
    ...Object.entries(examinedCalls).flatMap(([name, call]) => examine(name, call, machine)),
    answer(action.allow),
  ])
}

function refuseX32(): Step[] {
  return [
    jumpIfAtLeast(firstX32, 'x32'),
    jump('x64'),
    { label: 'x32' },
    answer(action.errno | enosys),
    { label: 'x64' },
  ]
}

// Each comparison is followed by its own return, because conditional jumps reach only 255 instructions.
function refuse(number: number | undefined, errno: number): Step[] {
  if (number === undefined) return []
  const next = `not ${number}`
  return [jumpUnless(number, next), answer(action.errno | errno), { label: next }]
}

function jumpUnless(value: number, to: string): Step {
  return { code: 0x15, value, no: to }
}

function examine(name: string, call: Examined, machine: Machine): Step[] {
  const [next, yes, no] = [`not ${name}`, `allow ${name}`, `refuse ${name}`]
  return [
    jumpUnless(call[machine], next),
    load(argumentAt(call.argument)),
    ...call.rule({ allow: yes, refuse: no }),
    { label: no },
    answer(action.errno | call.errno),
    { label: yes },
    answer(action.allow),
    { label: next },
  ]
}

function assemble(steps: Step[]): Buffer {
  const addresses = new Map<string, number>()
  let address = 0
  for (const step of steps) {
    if ('label' in step) addresses.set(step.label, address)
    else address += 1
  }
  const distance = (label: string | undefined, from: number) => {
    if (label === undefined) return 0
    const found = addresses.get(label)! - from - 1
    if (!(found >= 0 && found <= 255)) throw new Error(`the filter cannot jump to ${label}`)
    return found
  }
  const instructions = steps.filter((step): step is Instruction => !('label' in step))
  return Buffer.concat(instructions.map((step, at) => encode(step, distance(step.yes, at), distance(step.no, at))))
}

function encode(step: Instruction, yes: number, no: number): Buffer {
  const bytes = Buffer.alloc(8)
  bytes.writeUInt16LE(step.code, 0)
  // The distance of an unconditional jump is in the value field.
  const always = step.code === 0x05
  bytes.writeUInt8(always ? 0 : yes, 2)
  bytes.writeUInt8(always ? 0 : no, 3)
  bytes.writeUInt32LE(always ? yes : step.value >>> 0, 4)
  return bytes
}
