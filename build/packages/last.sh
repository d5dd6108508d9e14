#!/bin/bash
# last.sh OUT: makes packages of the last release's binaries, as the packages of today have them, from
# which tests upgrade. `make packages` must have run.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath -m "${1:?usage: last.sh OUT}")
version=$(awk '/^v/ { name = $1 } END { print name }' build/releases.txt)
./build/at.sh "$version" "out/releases/$version"
[ "$(cat "$out/commit" 2> /dev/null)" != "$(cat "out/releases/$version/commit")" ] || exit 0
rm -rf "$out"
mkdir -p "$out"
out/packages-bin/packages build -arch "$(go env GOHOSTARCH)" -bin "out/releases/$version" -docs out/packages-bin/docs \
  -plugins "$CNI_PLUGINS" -source . -out "$out" -version "${version#v}" -epoch "$SOURCE_DATE_EPOCH"
cp "out/releases/$version/commit" "$out/commit"
