#!/bin/bash
# run.sh [STEP[=PATTERN]...]: boots the VM (systemd, cgroup v2 only, Debian's kernel)
# with berth installed as `make install` does it, and runs the steps of guest.sh
# there. Without arguments it runs all steps for the security module
# (BERTH_VM_LSM: apparmor, or selinux). out/vm-run/out, or out/vm-run-selinux/out, has the logs.
# The step cluster has a boot of its own, out/vm-run-cluster: Kubernetes in emulation takes
# an hour and more memory. So does the step upgrade, out/vm-run-upgrade: it upgrades the berth to each release of
# out/releases that BERTH_UPGRADE_RELEASES names, and back, under load.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$PWD/out/vm-run${BERTH_VM_LSM:+-$BERTH_VM_LSM}
packages="./test/vm ./test/integration ./internal/engine/native ./internal/supervisor/server ./internal/network/builtin ./internal/sys/cgroup ./internal/image/erofs"
programs="kubelet" tag=
if [[ ${1:-} = cluster* ]]; then
  work=$PWD/out/vm-run-cluster
  packages=./test/e2e tag=e2e
  programs="kubelet kubeadm kubectl kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd coredns"
  export MEMORY=6144
fi
steps=$*
if [ "$steps" = upgrade ]; then
  work=$PWD/out/vm-run-upgrade
  packages=./test/e2e tag=e2e programs=
  steps=$(printf 'upgrade-%s ' ${BERTH_UPGRADE_RELEASES:?names the releases: make upgrade-matrix sets it})
fi
./test/vm/prepare.sh "$work" "$programs" "$packages" $tag
if [[ $steps = upgrade-* ]]; then
  for release in $BERTH_UPGRADE_RELEASES; do
    install -D -t "$work/releases/$release" "out/releases/$release/berth" "out/releases/$release/berth-supervisor"
  done
elif [ "$packages" = ./test/e2e ]; then
  cp out/kube/kubectl bin/hello-image.tar "$work/root/usr/local/bin/"
  ./test/systemd/image.sh
  ./bin/berth cluster build-image --kubernetes out/kube --rootfs out/systemd/root --output "$work/node.tar"
fi
echo "$steps" > "$work/steps"
exec ./test/vm/boot.sh "$work" "${BERTH_VM_SECONDS:-7200}"
