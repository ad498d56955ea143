import { expect, test } from 'vitest'
import { type Machine, seccompFilter } from './seccomp.ts'

const allow = 0x7fff_0000
const kill = 0x8000_0000
const refusedWith = (errno: number) => 0x0005_0000 + errno
const native: Record<Machine, number> = { x64: 0xc000_003e, arm64: 0xc000_00b7 }

/** Interprets the filter as the kernel would. */
function decide(
  machine: Machine,
  call: number,
  args: number[] = [],
  architecture = native[machine],
  filter = seccompFilter(machine),
): number {
  const data = Buffer.alloc(64)
  data.writeUInt32LE(call >>> 0, 0)
  data.writeUInt32LE(architecture, 4)
  args.forEach((value, index) => {
    data.writeBigUInt64LE(BigInt.asUintN(64, BigInt(value)), 16 + 8 * index)
  })
  let accumulator = 0
  for (let at = 0; at < filter.length / 8; at += 1) {
    const code = filter.readUInt16LE(at * 8)
    const [yes, no] = [filter.readUInt8(at * 8 + 2), filter.readUInt8(at * 8 + 3)]
    const value = filter.readUInt32LE(at * 8 + 4)
    if (code === 0x06) return value
    if (code === 0x20) accumulator = data.readUInt32LE(value)
    else if (code === 0x05) at += value
    else if (code === 0x15) at += accumulator === value ? yes : no
    else if (code === 0x35) at += accumulator >= value ? yes : no
    else if (code === 0x45) at += (accumulator & value) >>> 0 !== 0 ? yes : no
    else throw new Error(`unknown instruction: ${code}`)
  }
  throw new Error('the filter does not return')
}

const calls = {
  x64: {
    read: 0,
    mount: 165,
    clone: 56,
    clone3: 435,
    unshare: 272,
    setns: 308,
    socket: 41,
    personality: 135,
    ioctl: 16,
    ptrace: 101,
  },
  arm64: {
    read: 63,
    mount: 40,
    clone: 220,
    clone3: 435,
    unshare: 97,
    setns: 268,
    socket: 198,
    personality: 92,
    ioctl: 29,
    ptrace: 117,
  },
}

test.each(['x64', 'arm64'] as const)('allows, refuses and kills on %s', (machine) => {
  const of = calls[machine]
  expect(decide(machine, of.read)).toBe(allow)
  expect(decide(machine, of.ptrace)).toBe(allow)
  expect(decide(machine, 999)).toBe(allow)
  expect(decide(machine, of.mount)).toBe(refusedWith(1))
  expect(decide(machine, of.setns)).toBe(refusedWith(1))
  expect(decide(machine, of.clone3)).toBe(refusedWith(38))
  expect(decide(machine, of.read, [], 0x4000_0003)).toBe(kill)
})

test.each(['x64', 'arm64'] as const)('allows threads and children but no namespaces on %s', (machine) => {
  const { clone, unshare } = calls[machine]
  const thread = 0x3d_0f00
  expect(decide(machine, clone, [thread])).toBe(allow)
  expect(decide(machine, clone, [0x1200_011])).toBe(allow)
  // CLONE_FILES and CLONE_FS create no namespace.
  expect(decide(machine, unshare, [0x600])).toBe(allow)
  for (const flag of [0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000]) {
    expect(decide(machine, clone, [flag | 17])).toBe(refusedWith(1))
    expect(decide(machine, unshare, [flag])).toBe(refusedWith(1))
  }
  expect(decide(machine, unshare, [0x80])).toBe(refusedWith(1))
})

test.each(['x64', 'arm64'] as const)('checks arguments on %s', (machine) => {
  const { socket, personality, ioctl } = calls[machine]
  for (const family of [1, 2, 10, 16]) expect(decide(machine, socket, [family])).toBe(allow)
  for (const family of [0, 3, 17, 38, 40]) expect(decide(machine, socket, [family])).toBe(refusedWith(97))
  for (const kind of [0, 8, 0x4_0000, 0xffff_ffff]) expect(decide(machine, personality, [kind])).toBe(allow)
  expect(decide(machine, personality, [0x10_0000])).toBe(refusedWith(1))
  expect(decide(machine, ioctl, [0, 0x5413])).toBe(allow)
  expect(decide(machine, ioctl, [0, 0x5412])).toBe(refusedWith(1))
})

test('refuses the x32 system calls', () => {
  expect(decide('x64', 0x4000_0000)).toBe(refusedWith(38))
  expect(decide('x64', 0xffff_ffff)).toBe(refusedWith(38))
})

test.each(['x64', 'arm64'] as const)('keeps files in their quota on %s', (machine) => {
  const ioctl = { x64: 16, arm64: 29 }[machine]
  const ask = (request: number, keepsProjects: boolean) =>
    decide(machine, ioctl, [3, request], native[machine], seccompFilter(machine, { keepsProjects }))
  const [createSubvolume, clone, setProject] = [0x5000_940e, 0x4004_9409, 0x401c_5820]
  for (const keepsProjects of [false, true]) {
    expect(ask(createSubvolume, keepsProjects)).toBe(refusedWith(1))
    expect(ask(clone, keepsProjects)).toBe(allow)
  }
  expect(ask(setProject, true)).toBe(refusedWith(1))
  expect(ask(setProject, false)).toBe(allow)
})
