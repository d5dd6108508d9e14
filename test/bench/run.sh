#!/bin/bash
# Measures berth, berth over a Docker Engine and containerd side by side, in one run, in a
# private mount and network namespace. Installs the other runtimes from the Go module proxy.
# BENCH_CRI_DOCKERD=PROGRAM adds a cri-dockerd, BENCH_CRIO=PROGRAM a CRI-O.
# out/bench/result.json has all samples, out/bench/page.html draws them.
#   run.sh [flag of the bench ...]      see run.sh -help
set -euo pipefail
cd "$(dirname "$0")/../.."

out=$PWD/out/bench
bin=$out/bin
containerd=v2.4.2 runc=v1.5.2 plugins=v1.9.1 docker=v2.0.0-beta.24
mkdir -p "$bin"

if [ "$(cat "$bin/versions" 2>/dev/null)" != "$containerd $runc $plugins $docker" ]; then
  echo "bench: installing containerd $containerd, runc $runc, CNI plugins $plugins, Docker Engine $docker"
  export GOBIN=$bin GOFLAGS=-buildvcs=false
  for command in containerd containerd-shim-runc-v2; do
    go install github.com/containerd/containerd/v2/cmd/$command@$containerd
  done
  go install -tags seccomp github.com/opencontainers/runc@$runc
  GOFLAGS="-buildvcs=false -mod=mod" go install github.com/moby/moby/v2/cmd/dockerd@$docker
  for plugin in main/bridge main/loopback ipam/host-local meta/portmap; do
    go install github.com/containernetworking/plugins/plugins/$plugin@$plugins
  done
  echo "$containerd $runc $plugins $docker" > "$bin/versions"
  unset GOBIN GOFLAGS
fi
gcc -O2 -static -o "$bin/pause" test/bench/pause/pause.c
GOFLAGS=-buildvcs=false go build -o "$bin/bench" ./test/bench
CGO_ENABLED=0 GOFLAGS=-buildvcs=false go build -trimpath -ldflags '-s -w' -o "$bin/nothing" ./test/bench/nothing

exec unshare --mount --net --propagation private \
  bash -c 'ip link set lo up; exec "$@"' bench \
  "$bin/bench" -bin "$bin" -berth "${BERTH_BIN:-$PWD/bin}" -work "$out/work" -out "$out" -cri-dockerd "${BENCH_CRI_DOCKERD:-}" -crio "${BENCH_CRIO:-}" "$@"
