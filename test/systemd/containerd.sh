#!/bin/bash
# containerd.sh OUT: builds the assets of a node with a current containerd, as its
# projects release them, from the Go module proxy: containerd-VERSION-linux-ARCH.tar.gz,
# runc.ARCH and cni-plugins-linux-ARCH-VERSION.tgz, with a file SHA256SUMS. All is static, for
# distributions that are older than this machine. Takes minutes without a cache.
set -euo pipefail
containerd=v2.4.2 runc=v1.5.2 plugins=v1.9.1
out=$(realpath -m "${1:?usage: containerd.sh OUT}")
arch=$(go env GOARCH)
want="static $containerd $runc $plugins"
[ "$(cat "$out/versions" 2>/dev/null)" != "$want" ] || exit 0
echo "systemd: building containerd $containerd, runc $runc, CNI plugins $plugins"
rm -rf "$out"
mkdir -p "$out/bin" "$out/cni"
export GOFLAGS=-buildvcs=false
for command in containerd containerd-shim-runc-v2 ctr; do
  GOBIN=$out/bin CGO_ENABLED=0 go install "github.com/containerd/containerd/v2/cmd/$command@$containerd"
done
GOBIN=$out go install -tags "seccomp netgo osusergo" -ldflags "-linkmode external -extldflags -static" "github.com/opencontainers/runc@$runc"
for plugin in main/ptp main/bridge main/loopback ipam/host-local meta/portmap; do
  GOBIN=$out/cni CGO_ENABLED=0 go install "github.com/containernetworking/plugins/plugins/$plugin@$plugins"
done
cd "$out"
mv runc "runc.$arch"
tar -czf "containerd-${containerd#v}-linux-$arch.tar.gz" bin
tar -czf "cni-plugins-linux-$arch-$plugins.tgz" -C cni .
rm -r bin cni
sha256sum -- *.tar.gz *.tgz "runc.$arch" > SHA256SUMS
echo "$want" > versions
