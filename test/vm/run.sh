#!/bin/bash
# run.sh [STEP[=PATTERN]...]: boots the VM (systemd, cgroup v2 only, Debian's kernel)
# with berth installed as `make install` does it, and runs the steps of guest.sh
# there, all of the boot's security module (BERTH_VM_LSM: apparmor, or selinux) unless
# some are named. out/vm-run/out, or out/vm-run-selinux/out, has the logs.
set -euo pipefail
cd "$(dirname "$0")/../.."
./test/vm/image.sh
./test/kube/build.sh out/kube kubelet
work=$PWD/out/vm-run${BERTH_VM_LSM:+-$BERTH_VM_LSM}
rm -rf "$work"
mkdir -p "$work/tests"
make --no-print-directory -s install DESTDIR="$work/root"
cp out/kube/kubelet test/vm/guest.sh "$work/"
for package in ./test/vm ./test/integration ./internal/engine/native ./internal/supervisor/server ./internal/network/builtin; do
  go test -c -trimpath -tags "integration vm seccomp netgo osusergo runc_nocriu" -ldflags "-s -w" \
    -o "$work/tests/$(basename "$package").test" "$package"
done
echo "$*" > "$work/steps"
exec ./test/vm/boot.sh "$work" "${BERTH_VM_SECONDS:-4800}"
