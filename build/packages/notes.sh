#!/bin/bash
# notes.sh: prints the notes of the release of this commit: its version and checksums, and where the
# changes are described.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=$(./build/version.sh)
echo "berth $version ($(git rev-parse --short=12 HEAD), $(git show -s --format=%cs HEAD))"
echo
echo "What an upgrade changes: docs/release-notes.md. How to install: docs/packages.md."
echo
echo '```'
cat out/packages/SHA256SUMS
echo '```'
