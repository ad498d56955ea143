import { expect, test } from 'vitest'
import { imageToPull, withPulled } from './image.ts'

const image = { reference: 'docker.io/library/alpine:3', digest: null, env: {}, workingDir: '', problem: 'no route' }
const digest = `sha256:${'a'.repeat(64)}`

test('pulls by tag first, and by digest once it is known', () => {
  expect(imageToPull(image)).toMatchObject({ kind: 'registry', tag: '3' })
  expect(imageToPull({ ...image, digest })).toMatchObject({ kind: 'registry', digest })
})

test('takes environment and working directory from the pulled image and clears the problem', () => {
  const pulled = withPulled(image, { digest, config: { env: { A: '1' }, workingDir: '/srv' } })
  expect(pulled).toEqual({ ...image, digest, env: { A: '1' }, workingDir: '/srv', problem: null })
})
