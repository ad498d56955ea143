// Attempts to leave the box of a cluster, as a tenant could make them who has found a way to run programs as its server.
// Each is a shell command that prints ESCAPED if it succeeds.
export interface Surroundings {
  home: string
  /** A cluster of another organization. */
  otherId: string
  /** Ports on which something listens on the host. */
  ports: Record<string, number>
  /** A file that only exists on the host. */
  canary: string
  /** The pid of a process on the host. */
  hostPid: number
  id: string
}

const escaped = '&& echo ESCAPED'

export function clusterAttempts(around: Surroundings): Record<string, string> {
  return {
    ...fileAttempts(around),
    ...networkAttempts(around),
    ...processAttempts(around),
    ...kernelAttempts(),
  }
}

function fileAttempts({ home, otherId, canary, id }: Surroundings): Record<string, string> {
  const reads = {
    'the shadow file': '/etc/shadow',
    "the host's users": '/etc/hostname',
    'the key of the platform': `${home}/key`,
    'the root token': `${home}/token`,
    'the certificate authority': `${home}/ca/ca.key`,
    'the state database': `${home}/state/data/PG_VERSION`,
    'the data of another cluster': `${home}/clusters/${otherId}/data/PG_VERSION`,
    'the TLS key of another cluster': `${home}/clusters/${otherId}/tls/server.key`,
    "the pooler's password": `${home}/clusters/${id}/pooler/userlist.txt`,
    'a file of the host': canary,
    'the environment of init': '/proc/1/../../etc/shadow',
    'kernel memory': '/dev/mem',
    'kernel messages': '/dev/kmsg',
    'the first disk': '/dev/vda',
    'a loop device': '/dev/loop0',
    'kernel symbols': '/proc/kcore',
    'keys of the kernel': '/sys/kernel/security/lsm',
    'control groups': '/sys/fs/cgroup/cgroup.procs',
    'the mount table of the host': '/proc/self/root/../../../../../../../proc/1/root/etc/shadow',
  }
  const lists = {
    'the home': home,
    'other clusters': `${home}/clusters/${otherId}`,
    'the repository': `${home}/repository`,
    'the sockets': `${home}/run`,
    'its own socket': `${home}/run/${id}`,
    sandboxes: `${home}/sandbox`,
    machines: `${home}/machine`,
    'home directories': '/home',
    root: '/root',
    logs: '/var/log',
  }
  const writes = {
    'its own configuration': `${home}/clusters/${id}/configuration/pg_hba.conf`,
    'its own map of users': `${home}/clusters/${id}/configuration/pg_ident.conf`,
    'its own certificate': `${home}/clusters/${id}/tls/server.key`,
    'the lock of its service': `${home}/clusters/${id}/lock`,
    'a new file beside its data': `${home}/clusters/${id}/new`,
    'programs of the host': '/usr/bin/berth-new',
    'the root directory': '/new',
    'the users of the box': '/etc/passwd',
    'the core pattern': '/proc/sys/kernel/core_pattern',
    'kernel settings': '/proc/sys/vm/drop_caches',
    'network settings': '/proc/sys/net/ipv4/ip_forward',
    'the way to reboot': '/proc/sysrq-trigger',
    'its limits': '/proc/self/oom_score_adj.new',
  }
  return {
    ...mapValues(reads, 'read', (path) => `head -c 10 ${path} > /tmp/read && [ -s /tmp/read ] ${escaped}`),
    ...mapValues(lists, 'list', (path) => `[ -n "$(ls -A ${path} | grep -vxE 'clusters|toolchain')" ] ${escaped}`),
    ...mapValues(writes, 'write', (path) => `echo 0 >> ${path} ${escaped}`),
  }
}

function networkAttempts({ home, id, otherId, ports }: Surroundings): Record<string, string> {
  const connections = Object.entries(ports).flatMap(([name, port]) => [
    [name, '127.0.0.1', port],
    [`${name} by IPv6`, '::1', port],
    [`${name} by a wildcard`, '0.0.0.0', port],
  ])
  const addresses = ['10.0.0.1', '169.254.169.254', '100.64.0.1', '192.168.0.1', '1.1.1.1'].map((host) => [
    host,
    host,
    80,
  ])
  const dial = (host: unknown, port: unknown) =>
    `perl -MIO::Socket::IP -e 'exit !IO::Socket::IP->new(PeerHost => "${host}", PeerPort => ${port}, Timeout => 2)' ${escaped}`
  const sockets = [
    `${home}/run/${id}/.s.PGSQL.5432`,
    `${home}/run/${otherId}/.s.PGSQL.5432`,
    `${home}/run/state/.s.PGSQL.5432`,
    '/run/systemd/private',
    '/var/run/docker.sock',
  ]
  const dialSocket = (path: string) =>
    `perl -MIO::Socket::UNIX -e 'exit !IO::Socket::UNIX->new(Peer => "${path}")' ${escaped}`
  return {
    ...Object.fromEntries(
      [...connections, ...addresses].map(([name, host, port]) => [`connect to ${name}`, dial(host, port)]),
    ),
    ...Object.fromEntries(sockets.map((path, index) => [`connect to socket ${index + 1}`, dialSocket(path)])),
    'open a raw socket': `perl -MSocket -e 'exit !socket(my $s, AF_INET, SOCK_RAW, 1)' ${escaped}`,
    'open a packet socket': `perl -MSocket -e 'exit !socket(my $s, 17, SOCK_RAW, 0)' ${escaped}`,
    'open a vsock': `perl -MSocket -e 'exit !socket(my $s, 40, SOCK_STREAM, 0)' ${escaped}`,
    'see the interfaces of the host': `[ "$(ls /proc/self/net/dev_snmp6 | grep -vc '^lo$')" != 0 ] ${escaped}`,
    'listen on one more socket': `perl -MSocket -e 'socket(my $s, AF_INET, SOCK_STREAM, 0); bind($s, pack_sockaddr_in(0, INADDR_LOOPBACK)); exit !listen($s, 1)' ${escaped}`,
  }
}

function processAttempts({ hostPid }: Surroundings): Record<string, string> {
  return {
    'see processes of the host': `[ "$(ls -d /proc/[0-9]* | wc -l)" -gt 40 ] ${escaped}`,
    'signal a process of the host': `kill -0 ${hostPid} ${escaped}`,
    'find the supervisor': `grep -l s6-svscan /proc/[0-9]*/comm ${escaped}`,
    'keep capabilities': `! grep -q '^CapEff:.0*$' /proc/self/status ${escaped}`,
    'gain capabilities': `! grep -q '^CapBnd:.0*$' /proc/self/status ${escaped}`,
    'lack the filter': `! grep -q '^Seccomp:.2$' /proc/self/status ${escaped}`,
    'lack no_new_privs': `! grep -q '^NoNewPrivs:.1$' /proc/self/status ${escaped}`,
    'become root': `perl -e '$> = 0; exit !!$>' ${escaped}`,
    'join other groups': `perl -e '$) = "0 0"; exit $) !~ /^0/' ${escaped}`,
    'use sudo': `sudo -n true ${escaped}`,
    'use su': `su -c true < /dev/null ${escaped}`,
    'share memory with the host': `[ -n "$(ipcs -m | awk '$3 == "root"')" ] ${escaped}`,
  }
}

function kernelAttempts(): Record<string, string> {
  const call = (number: number, ...words: string[]) =>
    `perl -e 'exit(syscall(${[number, ...words].join(', ')}) < 0)' ${escaped}`
  const calls: Record<string, string> = {
    'unshare a user namespace': call(272, '0x10000000'),
    'unshare a mount namespace': call(272, '0x20000'),
    'load a module': call(313, '0', '""', '0'),
    'use bpf': call(321, '0', '0', '0'),
    'use keyrings': call(250, '0', '-3', '1'),
    'use io_uring': call(425, '1', '0'),
    'use userfaultfd': call(323, '0'),
    'open by handle': call(304, '-100', '0', '0'),
    'trace performance': call(298, '0', '0', '-1', '-1', '0'),
  }
  const perPlatform = process.arch === 'x64' ? calls : {}
  return {
    'mount a file system': `mount -t tmpfs none /tmp ${escaped}`,
    'mount by bind': `mount --bind /usr /tmp ${escaped}`,
    'unmount its data': `umount /proc ${escaped}`,
    'make a device': `mknod /tmp/device c 1 1 ${escaped}`,
    'leave its quota by a subvolume': refusedIoctl('0x5000940e'),
    'leave its quota by a project': refusedIoctl('0x401c5820'),
    'leave its quota by a flag': refusedIoctl('0x40086602'),
    'enter a chroot': `chroot /usr true ${escaped}`,
    'set the clock': `date -s 2020-01-01 ${escaped}`,
    'set the host name': `hostname other ${escaped}`,
    ...perPlatform,
  }
}

/** Succeeds unless the filter refuses the call: the file system itself may not know it. */
function refusedIoctl(request: string): string {
  const program = `open(my $d, "<", "/tmp"); my $a = "x" x 4096; exit(!ioctl($d, ${request}, $a) && $! == 1)`
  return `perl -e '${program}' ${escaped}`
}

function mapValues(
  values: Record<string, string>,
  verb: string,
  change: (value: string) => string,
): Record<string, string> {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [`${verb} ${name}`, change(value)]))
}
