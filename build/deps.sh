#!/bin/bash
# deps.sh GROUP: makes sure that what GROUP needs is on this machine, and installs
# with apt-get what is not. Says what it does; silent when nothing is missing.
set -euo pipefail

declare -A packages=(
  [build]="gcc libc6-dev libseccomp-dev pkg-config git"
  [verify]="hunspell hunspell-en-gb"
  [demo]="curl iproute2 procps"
  [test]="busybox-static debootstrap runc nftables iptables iproute2 containernetworking-plugins docker-registry containerd fuse3 jq curl procps util-linux conntrack haproxy docker.io erofs-utils"
  [e2e]="podman buildah umoci skopeo netavark aardvark-dns chromium prometheus"
  [packages]="gcc-aarch64-linux-gnu libc6-dev-arm64-cross libseccomp-dev:arm64"
  [arm64]="gcc-aarch64-linux-gnu libc6-dev-arm64-cross libseccomp-dev:arm64 qemu-user-static"
  [vm]="qemu-system-x86 debootstrap cpio e2fsprogs busybox-static kmod"
)

group=${1:?usage: deps.sh GROUP}
wanted=${packages[$group]:?unknown group $group}

if ! command -v go >/dev/null; then
  echo "deps: Go is not in PATH. Install Go $(awk '$1=="go"{print $2}' go.mod) or newer from https://go.dev/dl/." >&2
  exit 1
fi
# From 1.21 on Go fetches the version of go.mod itself; an older one fails with an error about go.mod's form.
have=$(cd / && GOTOOLCHAIN=local go env GOVERSION)
if [ "$(printf '%s\n' go1.21 "$have" | sort -V | head -n 1)" != go1.21 ]; then
  echo "deps: $have is too old. Install Go $(awk '$1=="go"{print $2}' go.mod) or newer from https://go.dev/dl/; from 1.21 on Go fetches that version itself." >&2
  exit 1
fi

# Those who can build for their own architecture only do so, and say it (build/packages/arches.sh).
if [ "$group" = packages ]; then
  [ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] && [ "$(id -u)" = 0 ] || exit 0
fi

# A package without an architecture is one of this machine's; dpkg-query would list all others, too.
native=$(dpkg --print-architecture 2>/dev/null || :)
installed() {
  local name=$1
  case $name in *:*) ;; *) name+=:$native ;; esac
  # What is the same for all architectures is known without one.
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null || dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}
missing=()
for package in $wanted; do
  installed "$package" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "deps: for \"$group\" this machine lacks what Debian calls: ${missing[*]}. Install them and try again." >&2
  exit 1
fi
if [ "$(id -u)" != 0 ]; then
  echo "deps: not root. Run: apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "deps: installing for \"$group\": ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Services that a package brings (docker-registry) must not start here.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' > $policy && chmod 755 $policy
  trap 'rm -f "$log" $policy' EXIT
fi
# A package of another architecture needs dpkg to know it.
added=''
for package in "${missing[@]}"; do
  case $package in *:*) dpkg --print-foreign-architectures | grep -qx "${package##*:}" || { dpkg --add-architecture "${package##*:}" && added=${package##*:}; } ;; esac
done
# Another apt-get may run: that of a machine that has just started, for example.
apt=(apt-get -q -o DPkg::Lock::Timeout=300)
if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } > "$log" 2>&1; then
  tail -20 "$log" >&2
  [ -z "$added" ] || dpkg --remove-architecture "$added"
  if [ "$group" = packages ]; then
    echo "deps: apt-get has no cross compiler or no libseccomp of arm64; see above" >&2
    exit 0
  fi
  echo "deps: apt-get failed; see above" >&2
  exit 1
fi
