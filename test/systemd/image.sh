#!/bin/bash
# Makes out/systemd/root: a Debian root filesystem that boots to systemd in a
# container, with the packages that nodes want in apt's cache, so that tests install
# them without a network. Made once, then kept; remove out/systemd to make it anew.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$PWD/out/systemd
recipe=$(sha256sum test/systemd/image.sh | cut -c1-16)
[ "$(cat "$out/recipe" 2>/dev/null)" != "$recipe" ] || exit 0
rm -rf "$out"
mkdir -p "$out"
cd "$out"
echo "systemd: making the root filesystem (a minute)"
debootstrap --variant=minbase \
  --include=systemd,systemd-sysv,dbus,iproute2,kmod,procps,nftables,iptables,libseccomp2,util-linux \
  bookworm root > debootstrap.log 2>&1 || { tail -5 debootstrap.log >&2; exit 1; }
chroot root apt-get install -y -q -d --no-install-recommends \
  conntrack ethtool socat libapparmor1 containerd runc containernetworking-plugins docker.io \
  cloud-init > packages.log 2>&1 || { tail -5 packages.log >&2; exit 1; }
echo node > root/etc/hostname
echo "$recipe" > recipe
