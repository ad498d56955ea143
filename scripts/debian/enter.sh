#!/bin/sh
# Makes a directory the root of this process, which must have its own mount and pid namespaces, and runs a program there
# with its own control groups. Usage: root=... cache=... group=... release=... scripts/debian/enter.sh <program> [argument...]
set -eu
: "${root?}" "${cache?}" "${group?}" "${release?}"

list_hierarchies() {
  sed -n 's/^[^ ]* \(\/sys\/fs\/cgroup[^ ]*\) cgroup2\{0,1\} .*/\1/p' /proc/self/mounts
}

# Joins a new group in every hierarchy. In version 2 a group hands its controllers down only without processes of its own.
join_groups() {
  for hierarchy in $(list_hierarchies); do
    for controller in cpu memory pids; do
      (echo "+$controller" >"$hierarchy/cgroup.subtree_control") 2>/dev/null || true
    done
    mkdir -p "$hierarchy/$group"
    # A group without processors and memory nodes takes no process.
    for file in cpuset.cpus cpuset.mems; do
      (cat "$hierarchy/$file" >"$hierarchy/$group/$file") 2>/dev/null || true
    done
    echo 0 >"$hierarchy/$group/cgroup.procs"
  done
}

# Must run after the control group namespace was made, whose root is the group and not the one below it.
leave_unified_root() {
  for hierarchy in $(list_hierarchies); do
    if [ -e "$hierarchy/$group/cgroup.type" ]; then
      mkdir -p "$hierarchy/$group/init"
      echo 0 >"$hierarchy/$group/init/cgroup.procs"
    fi
  done
}

mount_root() {
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount -t sysfs sysfs "$root/sys"
  case " $(list_hierarchies | tr '\n' ' ') " in
    *" /sys/fs/cgroup "*) ;;
    *) mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup" ;;
  esac
  for hierarchy in $(list_hierarchies); do
    mkdir -p "$root$hierarchy"
    mount --bind "$hierarchy/$group" "$root$hierarchy"
  done
  # Downloads are kept between runs.
  mkdir -p "$root/root/.npm" "$root/root/.cache/pip"
  mount --bind "$cache/archives-$release" "$root/var/cache/apt/archives"
  mount --bind "$cache/npm" "$root/root/.npm"
  mount --bind "$cache/pip" "$root/root/.cache/pip"
}

# Programs inside get only what package managers need to reach their sources.
keep_environment() {
  for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
    case $name in
      *_proxy | *_PROXY | npm_config_* | NPM_CONFIG_* | PIP_INDEX_URL | PIP_EXTRA_INDEX_URL | PART) ;;
      *) unset "$name" ;;
    esac
  done
  export HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  # Programs that come with certificates of their own use those of the system.
  bundle=/etc/ssl/certs/ca-certificates.crt
  export NODE_EXTRA_CA_CERTS="$bundle" PIP_CERT="$bundle" SSL_CERT_FILE="$bundle"
}

if [ "$1" != --mount ]; then
  join_groups
  exec unshare --cgroup --uts --ipc sh "$0" --mount "$@"
fi
shift
leave_unified_root
hostname "berth-$release"
mount_root
mkdir -p "$root/host"
cd "$root"
pivot_root . host
keep_environment
exec chroot . sh -c 'umount -l /host && rmdir /host && exec sh "$@"' sh "$@"
