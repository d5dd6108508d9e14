#!/bin/bash
# debs.sh [-r RELEASE] OUT PACKAGE…: downloads the packages that a machine of the image needs to
# install these, without recommended ones (with them after --install-recommends). RELEASE is debian-12
# if not given. Runs once and keeps the result.
set -euo pipefail
image=systemd
if [ "${1:-}" = -r ]; then
  [ "$2" = debian-12 ] || image=systemd-$2
  shift 2
fi
out=$(realpath -m "${1:?usage: debs.sh [-r RELEASE] OUT PACKAGE...}")
shift
cd "$(dirname "$0")/../.."
root=$PWD/out/$image/root
want="$(cat out/$image/recipe) $*"
[ "$(cat "$out/recipe" 2>/dev/null)" != "$want" ] || exit 0
rm -rf "$out"
mkdir -p "$out" "$root/tmp/debs/partial"
trap 'rm -rf "$root/tmp/debs"' EXIT
chroot "$root" apt-get install -y -q -d --no-install-recommends -o Dir::Cache::archives=/tmp/debs "$@" > "$out/log" 2>&1 || { tail -5 "$out/log" >&2; exit 1; }
mv "$root"/tmp/debs/*.deb "$out"
echo "$want" > "$out/recipe"
