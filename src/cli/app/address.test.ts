import { afterEach, expect, test, vi } from 'vitest'
import { findAddresses } from './address.ts'

afterEach(() => vi.unstubAllGlobals())

const own = { ip: '127.1.0.7', type: 'v4', shared: false, egress: false }
const six = { ip: 'fc00::7', type: 'v6', shared: false, egress: false }
const shared = { ip: '127.1.0.1', type: 'shared_v4', shared: true, egress: false }
const hidden = { ip: 'fdaa::1', type: 'private_v6', shared: false, egress: false }
const web = { protocol: 'tcp', internal_port: 1, ports: [{ port: 80, handlers: ['http'] }] }
const plain = { protocol: 'tcp', internal_port: 1, ports: [{ port: 5432 }] }
const range = { protocol: 'udp', internal_port: 1, ports: [{ start_port: 5000, end_port: 5010 }] }
const tls = { protocol: 'tcp', internal_port: 1, ports: [{ port: 6379, handlers: ['tls'] }] }
const url = 'http://shop.example:4282/'

test.each([
  ['only a private address', [hidden], [web], undefined, [], false],
  ['no services', [shared], [], url, [], false],
  ['a web service', [shared], [web], url, [], false],
  ['plain TCP at the shared address', [shared], [plain], undefined, [], true],
  [
    'plain TCP at own addresses',
    [own, six],
    [plain],
    undefined,
    ['tcp://127.1.0.7:5432', 'tcp://[fc00::7]:5432'],
    false,
  ],
  ['HTTP and UDP', [own, shared], [web, range], url, ['udp://127.1.0.7:5000-5010'], false],
  ['HTTP and plain TCP at the shared address', [shared], [web, plain], url, [], true],
  ['TLS at the shared address', [shared], [tls, tls], undefined, ['tls://shop.example:6379'], false],
])('an app with %s is shown where it answers', async (_, ips, services, expected, endpoints, lacksOwnAddress) => {
  vi.stubGlobal('fetch', async (address: string) => {
    const answers: Record<string, object> = {
      '/v1/apps/shop/ip_assignments': { ips },
      '/v1/apps/shop/machines': [{ config: { services } }],
      '/graphql': { data: { app: { appUrl: url } } },
    }
    return new Response(JSON.stringify(answers[address.replace('http://platform', '')]))
  })
  const found = await findAddresses({ url: 'http://platform', token: 'berth_x' }, 'shop')
  expect(found).toMatchObject({ url: expected, endpoints, lacksOwnAddress })
})
