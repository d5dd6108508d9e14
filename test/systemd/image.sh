#!/bin/bash
# image.sh [RELEASE]: builds the root filesystem of a distribution that boots to systemd in
# a container. apt's cache has the packages that nodes need, so that tests install them
# without a network. out/systemd/root is debian-12, out/systemd-RELEASE/root another.
# Made once, then kept; remove the directory to build it again.
set -euo pipefail
cd "$(dirname "$0")/../.."
release=${1:-debian-12}
out=$PWD/out/systemd
[ "$release" = debian-12 ] || out=$out-$release
recipe=$(sha256sum test/systemd/image.sh | cut -c1-16)
[ "$(cat "$out/recipe" 2>/dev/null)" != "$recipe" ] || exit 0
case $release in
  debian-11) suite=bullseye ;;
  debian-12) suite=bookworm ;;
  debian-13) suite=trixie ;;
  ubuntu-22.04) suite=jammy ;;
  ubuntu-24.04) suite=noble ;;
  ubuntu-25.10) suite=questing ;;
  *) echo "systemd: no recipe for $release" >&2; exit 2 ;;
esac
rm -rf "$out"
mkdir -p "$out"
cd "$out"
echo "systemd: making the root filesystem of $release (a minute)"

mirror=http://deb.debian.org/debian
pockets="deb $mirror $suite main"
strap=()
script=
if [ "${release%%-*}" = ubuntu ]; then
  # Debian has no keys of Ubuntu's archive: download them, and check their hash.
  keys=ubuntu-keyring_2023.11.28.1_all.deb
  mirror=http://archive.ubuntu.com/ubuntu
  curl -fsS -o "$keys" "$mirror/pool/main/u/ubuntu-keyring/$keys"
  echo "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8  $keys" | sha256sum --check --quiet
  dpkg-deb -x "$keys" keys
  strap=("--keyring=$out/keys/usr/share/keyrings/ubuntu-archive-keyring.gpg")
  script=gutsy # that of all releases of Ubuntu, which an older debootstrap does not know
  pockets=
  for pocket in "$suite" "$suite-updates" "$suite-security"; do
    pockets+="deb $mirror $pocket main universe"$'\n'
  done
fi
said() { tail -5 "$1" >&2; exit 1; }
debootstrap --variant=minbase "${strap[@]}" \
  --include=systemd,systemd-sysv,dbus,iproute2,kmod,procps,nftables,iptables,libseccomp2,util-linux,haproxy \
  "$suite" root "$mirror" $script > debootstrap.log 2>&1 || said debootstrap.log
echo "$pockets" > root/etc/apt/sources.list
rm -f root/etc/apt/sources.list.d/*
chroot root apt-get update -q > update.log 2>&1 || said update.log
names="conntrack ethtool socat libapparmor1 containerd runc containernetworking-plugins docker.io cloud-init strace"
names+=" $(chroot root apt-cache pkgnames docker-cli | grep -x docker-cli || :)" # which docker.io has in it, or not
chroot root apt-get install -y -q -d --no-install-recommends $names > packages.log 2>&1 || said packages.log
# The load balancers of clusters run it themselves.
ln -s /dev/null root/etc/systemd/system/haproxy.service
echo node > root/etc/hostname
echo "$recipe" > recipe
