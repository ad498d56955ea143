import { expect, test } from 'vitest'
import type { SentConfig } from '../machine-config.ts'
import { checkConfig } from '../machine-config-check.ts'

const sent = (...containers: object[]): SentConfig => ({ containers }) as never
const web = { name: 'web', image: 'nginx' }
const other = { name: 'other', image: 'nginx' }
const on = (name: string, condition?: string) => ({ depends_on: [{ name, condition }] })
const check = { name: 'up', tcp: { port: 80 } }

test('containers are stored, and the image of the machine is that of its main container', () => {
  const config = checkConfig({ ...sent(web, { name: 'app', image: 'redis' }), image: 'else' }, false)
  expect(config).toMatchObject({ image: 'redis', containers: [web, { name: 'app', image: 'redis' }] })
  expect(checkConfig(sent(web, other), false).image).toBe('nginx')
  expect(checkConfig(config, false)).toEqual(config)
})

test('fields that are not known are dropped, and durations are stored as text', () => {
  const { containers } = checkConfig(sent({ ...web, color: 'red', stop: { timeout: 3e9 } }), false)
  expect(containers).toEqual([{ ...web, stop: { timeout: '3s' } }])
})

test('dependencies may be given in any order', () => {
  const containers = [
    { ...web, ...on('db', 'healthy') },
    { name: 'db', image: 'postgres', healthchecks: [check], ...on('setup', 'exited_successfully') },
    { name: 'setup', image: 'postgres' },
  ]
  expect(checkConfig(sent(...containers), false).containers).toEqual(containers)
})

test.each<[string, SentConfig, string]>([
  ['no image', {} as never, 'config.image is required'],
  [
    'too many',
    sent(...Array.from({ length: 17 }, (_, at) => ({ ...web, name: `c${at}` }))),
    'config.containers has more than 16 entries',
  ],
  ['a name twice', sent(web, web), 'config.containers.1.name web is the name of another container'],
  [
    'a path as a name',
    sent({ ...web, name: '../web' }),
    'config.containers.0.name must be up to 63 letters, digits, dots, dashes and underscores',
  ],
  [
    'an unknown dependency',
    sent({ ...web, ...on('db') }),
    'config.containers.0.depends_on.0.name db is not the name of a container',
  ],
  [
    'itself as a dependency',
    sent({ ...web, ...on('web') }),
    'config.containers.0.depends_on.0.name web is the container itself',
  ],
  [
    'a circle',
    sent({ ...web, ...on('other') }, { ...other, ...on('web') }, { name: 'free', image: 'nginx' }),
    'config.containers depend on each other in a circle: web, other',
  ],
  [
    'health without checks',
    sent({ ...web, ...on('other', 'healthy') }, other),
    'config.containers.0.depends_on.0 waits for other to be healthy, which has no healthchecks',
  ],
  [
    'mounts',
    sent({ ...web, mounts: [{ name: 'data', path: '/data' }] }),
    'config.containers.0.mounts is not possible here: containers have no volumes',
  ],
  [
    'a volume',
    { ...sent(web), mounts: [{ volume: 'vol_1', path: '/data' }] },
    'config.mounts is not possible together with config.containers: containers have no volumes',
  ],
  [
    'files of the machine',
    { ...sent(web), files: [{ guest_path: '/a', raw_value: '' }] },
    'config.files is not possible together with config.containers: give files to the containers',
  ],
  [
    'a command of the machine',
    { ...sent(web), init: { cmd: ['a'] } },
    'config.init.cmd is not possible together with config.containers: give cmd to a container',
  ],
  [
    'processes',
    { ...sent(web), processes: [{}] },
    'config.processes is not possible together with config.containers: give the fields to the containers',
  ],
  [
    'no check',
    sent({ ...web, healthchecks: [{ name: 'up' }] }),
    'config.containers.0.healthchecks.0 must have one of http, tcp and exec',
  ],
  [
    'two kinds',
    sent({ ...web, healthchecks: [{ ...check, exec: { command: ['a'] } }] }),
    'config.containers.0.healthchecks.0 must have one of http, tcp and exec',
  ],
  [
    'a check twice',
    sent({ ...web, healthchecks: [check, check] }),
    'config.containers.0.healthchecks.1.name up is the name of another health check',
  ],
  [
    'an empty command',
    sent({ ...web, healthchecks: [{ name: 'up', exec: { command: [] } }] }),
    'config.containers.0.healthchecks.0.exec.command is required',
  ],
  [
    'an image of the host',
    sent({ ...web, image: 'oci:/srv/image' }),
    'config.containers.0.image names a file of the host, which takes the root token; name an image in a registry',
  ],
  [
    'a bad variable',
    sent({ ...web, env: { 'A=B': '' } }),
    'config.containers.0.env has an invalid variable name: "A=B"',
  ],
  [
    'a bad secret',
    sent({ ...web, secrets: [{ env_var: '' }] }),
    'config.containers.0.secrets.0 has an invalid variable name: ""',
  ],
  [
    'a bad file',
    sent({ ...web, files: [{ guest_path: 'a', raw_value: '' }] }),
    'config.containers.0.files.0.guest_path must be an absolute path below the root, without ..',
  ],
  [
    'a file of an image',
    sent({ ...web, files: [{ guest_path: '/a', image_config: 'b' }] }),
    'config.containers.0.files.0.image_config is not possible here: give raw_value or secret_name',
  ],
  ['a bad signal', sent({ ...web, stop: { signal: 'SIGNOPE' } }), 'config.containers.0.stop.signal: '],
  [
    'a bad policy',
    sent({ ...web, restart: { policy: 'spot-price' } }),
    'config.containers.0.restart.policy spot-price is not possible here: there are no spot prices',
  ],
  ['NUL', sent({ ...web, cmd: ['a\0'] }), 'config.containers.0 must not contain NUL characters'],
])('%s is refused', (_, config, message) => {
  expect(() => checkConfig(config, false)).toThrow(message)
})
