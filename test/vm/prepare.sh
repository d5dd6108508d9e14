#!/bin/bash
# prepare.sh DIR PROGRAMS PACKAGES [TAG]: makes DIR, which boot.sh boots: the VM's image, berth as `make install` has it,
# programs of Kubernetes, and the test binaries of packages (lists in one word each), built with one more TAG.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$1 programs=$2 packages=$3 tags="integration vm seccomp netgo osusergo runc_nocriu ${4:-}"
./test/vm/image.sh
[ -z "$programs" ] || ./test/kube/build.sh out/kube $programs
rm -rf "$work"
mkdir -p "$work/tests"
make --no-print-directory -s install DESTDIR="$work/root"
cp test/vm/guest.sh "$work/"
[[ $programs != *kubelet* ]] || cp out/kube/kubelet "$work/"
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$work/attack" ./test/harness/attack/program
for package in $packages; do
  go test -c -trimpath -tags "$tags" -ldflags "-s -w" -o "$work/tests/$(basename "$package").test" "$package"
done
