#!/bin/bash
# arches.sh ARCH...: prints those of the architectures for which this machine can build, and says
# which it cannot and why.
set -euo pipefail
native=$(go env GOHOSTARCH)
for arch in "$@"; do
  case $arch in
    amd64) triple=x86_64-linux-gnu ;;
    arm64) triple=aarch64-linux-gnu ;;
    *) echo "packages: there are no packages for $arch" >&2; exit 1 ;;
  esac
  if [ "$arch" = "$native" ]; then
    echo "$arch"
  elif ! command -v "$triple-gcc" > /dev/null; then
    echo "packages: none for $arch: this machine has no $triple-gcc" >&2
  elif [ ! -e "/usr/lib/$triple/libseccomp.a" ]; then
    echo "packages: none for $arch: this machine has no libseccomp-dev:$arch" >&2
  else
    echo "$arch"
  fi
done
