#!/bin/bash
# build.sh BINARIES OUT ARCH...: builds the packages of each architecture into OUT. BINARIES is the
# directory for binaries and generated docs. `make packages` sets VERSION, SOURCE_DATE_EPOCH and
# CNI_PLUGINS.
set -euo pipefail
cd "$(dirname "$0")/../.."
binaries=$(realpath -m "$1") out=$(realpath -m "$2")
shift 2
native=$(go env GOHOSTARCH)
child=internal/supervisor/ownstart/program
unpack=internal/image/helper/program
tool=$binaries/packages

rm -rf "$out"
mkdir -p "$out" "$binaries"
go -C tools/packages build -trimpath -o "$tool" .

# binaries ARCH: those of an architecture. The tree is not written to: an overlay has the programs
# that berth and the supervisor embed.
binaries() {
  local arch=$1 dir=$binaries/$1
  mkdir -p "$dir/child"
  printf '{"Replace": {"%s/%s/berth-init": "%s/child/berth-init", "%s/%s/berth-unpack": "%s/child/berth-unpack"}}\n' \
    "$PWD" "$child" "$dir" "$PWD" "$unpack" "$dir" > "$dir/overlay.json"
  local env=(GOARCH="$arch")
  if [ "$arch" != "$native" ]; then
    local triple
    case $arch in
      amd64) triple=x86_64-linux-gnu ;;
      arm64) triple=aarch64-linux-gnu ;;
    esac
    env+=(CC="$triple-gcc" PKG_CONFIG_LIBDIR="/usr/lib/$triple/pkgconfig:/usr/share/pkgconfig")
  fi
  env "${env[@]}" "${MAKE:-make}" --no-print-directory binaries berth-cni BIN="$dir" CHILD="$dir/child" UNPACK="$dir/child" GOFLAGS="-mod=readonly -buildvcs=false -overlay=$dir/overlay.json"
}

# The commands of this machine's berth are those of every architecture's.
binaries "$native"
"$tool" docs -berth "$binaries/$native/berth" -source . -out "$binaries/docs" -version "$VERSION" -epoch "$SOURCE_DATE_EPOCH"
for arch in "$@"; do
  [ "$arch" = "$native" ] || binaries "$arch"
  "$tool" build -arch "$arch" -bin "$binaries/$arch" -docs "$binaries/docs" -plugins "$CNI_PLUGINS" \
    -source . -out "$out" -version "$VERSION" -epoch "$SOURCE_DATE_EPOCH"
done
"$tool" checksums -out "$out"
