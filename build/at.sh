#!/bin/bash
# at.sh VERSION|COMMIT OUT: builds the binaries of an earlier commit, with that commit's Makefile, into
# OUT. VERSION is one of build/releases.txt. Runs once and keeps the result.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?usage: at.sh VERSION|COMMIT OUT} out=$(realpath -m "${2:?usage: at.sh VERSION|COMMIT OUT}")
commit=$(awk -v name="$name" '$1 == name { print $2 }' build/releases.txt)
commit=$(git rev-parse --verify --quiet "${commit:-$name}^{commit}") || {
  echo "at: $name is neither in build/releases.txt nor a commit of this repository; a shallow clone needs git fetch --unshallow" >&2
  exit 1
}
[ "$(cat "$out/commit" 2> /dev/null)" != "$commit" ] || exit 0
echo "at: building $name ($(git show -s --format='%h, %cs' "$commit"))"
rm -rf "$out"
mkdir -p "$out"
tree=$(mktemp -d "${TMPDIR:-/var/tmp}/berth-at-XXXXXX")
trap 'rm -rf "$tree"' EXIT
git archive "$commit" | tar -x -C "$tree"
# The variables that the Makefile reads from git.
stamp=(VERSION="${name#v}" COMMIT="$(git rev-parse --short=12 "$commit")" DATE="$(git show -s --format=%cs "$commit")")
if ! env -u MAKEFLAGS -u MAKELEVEL -u GOFLAGS make -C "$tree" "${stamp[@]}" build > "$out/log" 2>&1; then
  tail -20 "$out/log" >&2
  exit 1
fi
cp "$tree"/bin/berth "$tree"/bin/berth-supervisor "$tree"/bin/hello-image.tar "$out"
if [ -d "$tree/cmd/berth-cni" ]; then
  env -u MAKEFLAGS -u MAKELEVEL GOFLAGS=-buildvcs=false CGO_ENABLED=0 go build -C "$tree" -trimpath -tags "netgo osusergo nri_no_wasm" -o "$out/berth-cni" ./cmd/berth-cni
fi
echo "$commit" > "$out/commit"
