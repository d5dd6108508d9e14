#!/bin/bash
# run.sh [STEP[=PATTERN]...]: boots the VM (systemd, cgroup v2 only, Debian's kernel)
# with berth installed as `make install` does it, and runs the steps of guest.sh
# there. Without arguments it runs all steps for the security module
# (BERTH_VM_LSM: apparmor, or selinux). out/vm-run/out, or out/vm-run-selinux/out, has the logs.
# The step cluster has a boot of its own, out/vm-run-cluster: Kubernetes in emulation takes
# an hour and more memory.
set -euo pipefail
cd "$(dirname "$0")/../.."
./test/vm/image.sh
work=$PWD/out/vm-run${BERTH_VM_LSM:+-$BERTH_VM_LSM}
tags="integration vm seccomp netgo osusergo runc_nocriu"
packages="./test/vm ./test/integration ./internal/engine/native ./internal/supervisor/server ./internal/network/builtin"
programs="kubelet"
if [[ ${1:-} = cluster* ]]; then
  work=$PWD/out/vm-run-cluster
  tags="e2e $tags"
  packages=./test/e2e
  programs="kubelet kubeadm kubectl kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd coredns"
  export MEMORY=6144
fi
./test/kube/build.sh out/kube $programs
rm -rf "$work"
mkdir -p "$work/tests"
make --no-print-directory -s install DESTDIR="$work/root"
cp out/kube/kubelet test/vm/guest.sh "$work/"
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$work/attack" ./test/harness/attack/program
for package in $packages; do
  go test -c -trimpath -tags "$tags" -ldflags "-s -w" -o "$work/tests/$(basename "$package").test" "$package"
done
if [ "$packages" = ./test/e2e ]; then
  cp out/kube/kubectl bin/hello-image.tar "$work/root/usr/local/bin/"
  ./test/systemd/image.sh
  ./bin/berth cluster build-image --kubernetes out/kube --rootfs out/systemd/root --output "$work/node.tar"
fi
echo "$*" > "$work/steps"
exec ./test/vm/boot.sh "$work" "${BERTH_VM_SECONDS:-7200}"
