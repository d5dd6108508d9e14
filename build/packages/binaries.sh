#!/bin/bash
# binaries.sh DIR ARCH: builds the programs of an architecture into DIR/ARCH. The tree is not written to: an overlay has
# the programs that berth and the supervisor embed.
set -euo pipefail
cd "$(dirname "$0")/../.."
arch=$2 dir=$(realpath -m "$1")/$2
child=internal/supervisor/ownstart/program
unpack=internal/image/helper/program
mkdir -p "$dir/child"
printf '{"Replace": {"%s/%s/berth-init": "%s/child/berth-init", "%s/%s/berth-unpack": "%s/child/berth-unpack"}}\n' \
  "$PWD" "$child" "$dir" "$PWD" "$unpack" "$dir" > "$dir/overlay.json"
env=(GOARCH="$arch")
if [ "$arch" != "$(go env GOHOSTARCH)" ]; then
  case $arch in
    amd64) triple=x86_64-linux-gnu ;;
    arm64) triple=aarch64-linux-gnu ;;
  esac
  env+=(CC="$triple-gcc" PKG_CONFIG_LIBDIR="/usr/lib/$triple/pkgconfig:/usr/share/pkgconfig")
fi
env "${env[@]}" "${MAKE:-make}" --no-print-directory binaries berth-cni BIN="$dir" CHILD="$dir/child" UNPACK="$dir/child" GOFLAGS="-mod=readonly -buildvcs=false -overlay=$dir/overlay.json"
