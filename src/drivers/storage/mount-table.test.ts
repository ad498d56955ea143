import { expect, test } from 'vitest'
import { listMounts } from './mount-table.ts'

test('a line of the mount table is read, with escaped characters and optional fields', () => {
  const text = [
    '22 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard',
    '40 22 7:0 / /srv/my\\040home rw - xfs /dev/loop0 rw,prjquota',
    '',
  ].join('\n')
  expect(listMounts(text)).toEqual([
    {
      mountPoint: '/',
      device: '254:0',
      fileSystem: 'ext4',
      source: '/dev/vda',
      options: ['rw', 'relatime', 'rw', 'discard'],
    },
    {
      mountPoint: '/srv/my home',
      device: '7:0',
      fileSystem: 'xfs',
      source: '/dev/loop0',
      options: ['rw', 'rw', 'prjquota'],
    },
  ])
})
