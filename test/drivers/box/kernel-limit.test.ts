// Tables of the kernel that all boxes and the host share.
import { readFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { boxNetwork } from '../../../src/drivers/box/network.ts'
import { isRoot, run } from '../../../src/drivers/host/process.ts'
import type { BoxSpec } from '../../../src/model/sandbox/box.ts'
import { type BoxBench, openBoxBench } from '../../support/box.ts'
import { type Neighbor, startNeighbor } from '../../support/neighbor.ts'

describe.runIf(isRoot())('a box', () => {
  let bench: BoxBench
  let neighbor: Neighbor
  let box: BoxSpec
  let other: BoxSpec

  beforeAll(async () => {
    bench = await openBoxBench()
    box = await bench.newBox()
    other = await bench.newBox()
    neighbor = await startNeighbor(
      ['198.51.100.201/29'],
      ['198.51.100.202/29'],
      ['sh', '-c', 'echo up; exec sleep 600'],
    )
  })
  afterAll(async () => {
    neighbor?.machine.kill('SIGKILL')
    await bench?.remove()
  })

  /** Sends datagrams to this many ports of the neighbor. */
  const send = (from: BoxSpec, count: number) =>
    bench.run(from, [
      'perl',
      '-e',
      'use Socket; socket(S, 2, 2, 17); my $to = inet_aton("198.51.100.202"); send(S, "x", 0, sockaddr_in(1000 + $_, $to)) for 1 .. $ARGV[0]; print "sent"',
      String(count),
    ])

  /** The connections of a box that the host tracks. */
  function countTracked({ slot }: BoxSpec): number {
    const from = `src=${boxNetwork(bench.home, slot).address} `
    const lines = readFileSync('/proc/net/nf_conntrack', 'utf8').split('\n')
    return lines.filter((line) => line.includes(from)).length
  }

  test('can take a part of the connection tracking table only, and others keep theirs', async () => {
    expect((await send(box, 7000)).out).toBe('sent')
    const tracked = countTracked(box)
    expect(tracked).toBeGreaterThan(1000)
    // The kernel counts a connection a moment before it is in the table.
    expect(tracked).toBeLessThanOrEqual(4096 * 1.05)
    expect((await send(other, 50)).out).toBe('sent')
    expect(countTracked(other)).toBeGreaterThanOrEqual(50)
  })

  test('has its own terminals, of which there are enough for all boxes', async () => {
    const count = await bench.run(box, [
      'perl',
      '-e',
      'my @open; while (open(my $f, "+<", "/dev/ptmx")) { push @open, $f } print scalar @open',
    ])
    expect(count.out).toBe('256')
    expect((await bench.run(other, ['perl', '-e', 'print open(my $f, "+<", "/dev/ptmx") ? "open" : "$!"'])).out).toBe(
      'open',
    )
    const { stdout } = await run('cat', ['/proc/sys/kernel/pty/max', '/proc/sys/kernel/pty/reserve'])
    const [most, reserved] = stdout.trim().split('\n').map(Number)
    expect(most! - reserved!).toBeGreaterThanOrEqual(256 * 900)
  })
})
