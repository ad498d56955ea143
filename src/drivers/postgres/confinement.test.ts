import { expect, test } from 'vitest'
import { innerAddresses, programPaths, publishedAddresses, replacedAddresses } from './confinement.ts'

test('resolves every form of address that an operator can configure', async () => {
  const at = async (listen: string) => (await publishedAddresses(listen, 5432)).map(({ address }) => address)
  expect(await at('127.0.0.1')).toEqual(['127.0.0.1'])
  expect(await at(' 10.0.0.1 , ::1,10.0.0.1')).toEqual(['10.0.0.1', '::1'])
  expect((await at('*'))[0]).toBe('0.0.0.0')
  expect(await at('localhost')).toContain('127.0.0.1')
  expect(await at('')).toEqual([])
})

test('has a listening address inside for each published one, and one for connections to itself', async () => {
  const published = await publishedAddresses('0.0.0.0,::', 5432)
  expect(replacedAddresses(published)).toEqual(['127.0.0.2', '127.0.0.3'])
  expect(innerAddresses(published).listen).toBe('127.0.0.2,127.0.0.3,127.0.0.1')
})

test('shows no directory twice, and never the root directory', () => {
  const toolchain = {
    major: '17',
    version: '17.10',
    source: 'configured',
    bin: '/bin',
    tools: '/',
    share: '/usr/share',
  } as const
  expect(programPaths(toolchain)).toEqual([])
})
