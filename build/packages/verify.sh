#!/bin/bash
# verify.sh PACKAGES: builds the packages of the commit again, from a clone in another directory and
# with an empty build cache, and compares them with those in PACKAGES.
set -euo pipefail
cd "$(dirname "$0")/../.."
first=$(realpath "$1")
if ! git diff --quiet HEAD; then
  echo "packages: the work tree differs from HEAD: commit first, since a clone has commits only" >&2
  exit 1
fi
scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/berth-verify-XXXXXX")
# The module cache is shared, and its files are read-only; the build cache is not.
trap 'chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
git clone --quiet --no-local . "$scratch/berth"
mapfile -t arches < <(cd "$first" && for file in *.tar.gz; do file=${file%.tar.gz}; echo "${file##*-}"; done)
(cd "$scratch/berth" && GOCACHE=$scratch/cache SIGN_COMMAND='' SIGN_PACKAGE_COMMAND='' \
  ./build/packages/build.sh "$scratch/bin" "$scratch/packages" "${arches[@]}")
if ! diff "$first/SHA256SUMS" "$scratch/packages/SHA256SUMS"; then
  echo "packages: two builds of one commit differ in the files above" >&2
  exit 1
fi
echo "packages: two builds of $(git rev-parse --short=12 HEAD) have the same bytes"
