#!/bin/bash
# debs.sh OUT PACKAGE…: downloads the packages that a machine of the image needs to install these,
# without recommended ones. Runs once and keeps the result.
set -euo pipefail
out=$(realpath -m "${1:?usage: debs.sh OUT PACKAGE...}")
shift
cd "$(dirname "$0")/../.."
root=$PWD/out/systemd/root
want="$(cat out/systemd/recipe) $*"
[ "$(cat "$out/recipe" 2>/dev/null)" != "$want" ] || exit 0
rm -rf "$out"
mkdir -p "$out" "$root/tmp/debs/partial"
trap 'rm -rf "$root/tmp/debs"' EXIT
chroot "$root" apt-get install -y -q -d --no-install-recommends -o Dir::Cache::archives=/tmp/debs "$@" > "$out/log" 2>&1 || { tail -5 "$out/log" >&2; exit 1; }
mv "$root"/tmp/debs/*.deb "$out"
echo "$want" > "$out/recipe"
