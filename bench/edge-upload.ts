import { once } from 'node:events'
import { connect as connectHttp2 } from 'node:http2'
import { request } from 'node:https'
import { type AddressInfo, connect as connectTcp, createServer, type Socket } from 'node:net'
import { connect as connectTls, type TLSSocket } from 'node:tls'
import { readAddresses } from './edge.ts'
import { group, interleave } from './framework.ts'
import { openPlatform } from './platform.ts'
import type { Scope } from './scope.ts'

const name = 'upload'
const host = `${name}.sandbox.localhost`
const servicePort = 8080
const roundTripMs = 50
const body = Buffer.alloc(20_000_000)

/** Reads each request body to its end, and answers with its length. */
const sink = `use strict; use warnings; use IO::Socket::INET;
$SIG{CHLD} = 'IGNORE';
my $server = IO::Socket::INET->new(LocalAddr => '0.0.0.0', LocalPort => ${servicePort}, Listen => 64, ReuseAddr => 1) or die;
while (my $client = $server->accept) {
  next if fork;
  while (1) {
    my ($line, $left) = ('', 0);
    while (defined($line = <$client>) && $line !~ /^\\r\\n$/) { $left = $1 if $line =~ /^content-length: (\\d+)/i }
    exit unless defined $line;
    my $length = $left;
    while ($left > 0) { my $got = read($client, my $bytes, $left < 262144 ? $left : 262144); exit unless $got; $left -= $got }
    my $text = "$length";
    print $client "HTTP/1.1 200 OK\\r\\nContent-Length: " . length($text) . "\\r\\n\\r\\n$text"; $client->flush;
  }
}
`

const edgeUpload = group({
  async setUp(scope) {
    const platform = await openPlatform(scope)
    await platform.start()
    const { sandbox, edge } = await readAddresses(platform)
    const call = async (method: string, path: string, content: string) => {
      const headers = { authorization: `Bearer ${platform.token}` }
      const reply = await fetch(`${sandbox}/v1/sandboxes${path}`, { method, body: content, headers })
      if (!reply.ok) throw new Error(`${method} ${path}: ${reply.status} ${await reply.text()}`)
      await reply.text()
    }
    await call('POST', '', JSON.stringify({ name, url_settings: { auth: 'public' } }))
    await call('PUT', `/${name}/fs/write?path=/home/sprite/sink.pl`, sink)
    const definition = { cmd: 'perl', args: ['/home/sprite/sink.pl'], http_port: servicePort }
    await call('PUT', `/${name}/services/web?duration=1s`, JSON.stringify(definition))
    return { port: await startDelay(scope, Number(new URL(edge).port)) }
  },
  benchmarks: [
    {
      name: 'edge-http2-upload',
      title: `an upload of ${body.length / 1e6} MB over HTTP/2 with a round trip of ${roundTripMs} ms, MB/s`,
      target: { atLeast: 0.8 },
      async run({ port }) {
        const ratio = await interleave(
          () => rateOf(() => uploadHttp2(port)),
          () => rateOf(() => uploadHttp1(port)),
        )
        const note = `${ratio.measured.toFixed(1)} and ${ratio.reference.toFixed(1)} MB/s, each on a new TLS connection; ${ratio.note}`
        return { value: ratio.median, unit: '×', reference: 'HTTP/1.1', note, disturbed: ratio.disturbed }
      },
    },
  ],
})

export const edgeUploads = [edgeUpload]

async function rateOf(upload: () => Promise<string>): Promise<number> {
  const start = performance.now()
  const answer = await upload()
  if (answer !== String(body.length)) throw new Error(`the program got ${answer} bytes`)
  return body.length / 1_000 / (performance.now() - start)
}

function dial(port: number, protocol: string): TLSSocket {
  return connectTls({ port, servername: host, ALPNProtocols: [protocol], rejectUnauthorized: false })
}

async function uploadHttp1(port: number): Promise<string> {
  const socket = dial(port, 'http/1.1')
  const headers = { host, 'content-length': body.length }
  const call = request({ method: 'PUT', path: '/', headers, createConnection: () => socket }).end(body)
  const [reply] = await once(call, 'response')
  const answer = await textOf(reply)
  socket.destroy()
  return answer
}

async function uploadHttp2(port: number): Promise<string> {
  const session = connectHttp2(`https://${host}`, { createConnection: () => dial(port, 'h2') })
  const headers = { ':method': 'PUT', ':path': '/', 'content-length': String(body.length) }
  const answer = await textOf(session.request(headers, { endStream: false }).end(body))
  session.destroy()
  return answer
}

async function textOf(stream: AsyncIterable<Buffer>): Promise<string> {
  let text = ''
  for await (const chunk of stream) text += chunk
  return text
}

/** Forwards connections to the port, and holds what passes in either direction for half of the round trip. */
async function startDelay(scope: Scope, target: number): Promise<number> {
  const sockets = new Set<Socket>()
  const server = createServer({ noDelay: true }, (near) => {
    const far = connectTcp({ port: target, host: '127.0.0.1', noDelay: true })
    pass(near, far)
    pass(far, near)
    for (const socket of [near, far]) {
      sockets.add(socket)
      socket.on('close', () => sockets.delete(socket))
    }
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  scope.defer(() => {
    server.close()
    for (const socket of sockets) socket.destroy()
  })
  return (server.address() as AddressInfo).port
}

function pass(from: Socket, to: Socket): void {
  const later = (act: () => void) => setTimeout(act, roundTripMs / 2)
  from.on('data', (bytes) => later(() => to.write(bytes)))
  from.on('end', () => later(() => to.end()))
  from.on('error', () => to.destroy())
  from.on('close', () => later(() => to.destroy()))
}
