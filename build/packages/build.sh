#!/bin/bash
# build.sh BINARIES OUT ARCH...: builds the packages of each architecture into OUT. BINARIES is the
# directory for binaries and generated docs. `make packages` sets VERSION, SOURCE_DATE_EPOCH and
# CNI_PLUGINS.
set -euo pipefail
cd "$(dirname "$0")/../.."
binaries=$(realpath -m "$1") out=$(realpath -m "$2")
shift 2
native=$(go env GOHOSTARCH)
tool=$binaries/packages

rm -rf "$out"
mkdir -p "$out" "$binaries"
go -C tools/packages build -trimpath -o "$tool" .

# The commands of this machine's berth are those of every architecture's.
./build/packages/binaries.sh "$binaries" "$native"
"$tool" docs -berth "$binaries/$native/berth" -source . -out "$binaries/docs" -version "$VERSION" -epoch "$SOURCE_DATE_EPOCH"
for arch in "$@"; do
  [ "$arch" = "$native" ] || ./build/packages/binaries.sh "$binaries" "$arch"
  "$tool" build -arch "$arch" -bin "$binaries/$arch" -docs "$binaries/docs" -plugins "$CNI_PLUGINS" \
    -source . -out "$out" -version "$VERSION" -epoch "$SOURCE_DATE_EPOCH"
done
"$tool" checksums -out "$out"
