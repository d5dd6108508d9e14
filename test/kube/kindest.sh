#!/bin/bash
# kindest.sh NODE OUT: builds an image like kindest/node, for a host without access to a
# registry: kind's own files of its Go module, containerd with images of pods in its store,
# kubeadm. NODE is an archive of `berth cluster build-image --output`, whose Debian,
# Kubernetes and component images it takes; OUT is the archive to write. A script replaces
# kindnetd, whose source is on no module proxy.
# It needs test/systemd/containerd.sh out/systemd-assets, gcc, jq and busybox.
set -euo pipefail
node=$(realpath "${1:?usage: kindest.sh NODE OUT}")
out=$(realpath -m "${2:?usage: kindest.sh NODE OUT}")
cd "$(dirname "$0")/../.."
readonly kind=v0.33.0 assets=$PWD/out/systemd-assets
work=$(mktemp -d "${TMPDIR:-/tmp}/kindest.XXXXXX")
daemon=
clean() {
  if [ -n "$daemon" ]; then
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap clean EXIT

# archive NAME ROOT SETTINGS FILE: writes a root file system as docker saves an image.
archive() {
  local dir diff id
  dir=$(mktemp -d "$work/archive.XXXXXX")
  tar --create --file="$dir/layer.tar" --directory="$2" --numeric-owner --sort=name --xattrs --xattrs-include='*' .
  diff=$(sha256sum "$dir/layer.tar" | cut -d' ' -f1)
  jq -nc --argjson config "$3" --arg diff "sha256:$diff" --arg arch "$(go env GOARCH)" \
    '{architecture: $arch, os: "linux", config: $config, rootfs: {type: "layers", diff_ids: [$diff]}}' > "$dir/config.json"
  id=$(sha256sum "$dir/config.json" | cut -d' ' -f1)
  mv "$dir/config.json" "$dir/$id.json"
  jq -nc --arg name "$1" --arg config "$id.json" '[{Config: $config, RepoTags: [$name], Layers: ["layer.tar"]}]' > "$dir/manifest.json"
  tar --create --file="$4" --directory="$dir" layer.tar "$id.json" manifest.json
  rm -r "$dir"
}

echo "kindest: unpacking $(basename "$node")"
root=$work/root
mkdir "$root" "$work/images"
tar -xOf "$node" manifest.json | jq -r '.[0].Layers[0]' > "$work/layer"
tar -xOf "$node" "$(cat "$work/layer")" | tar --extract --directory="$root" --xattrs --xattrs-include='*' --same-owner
tar --create --file="$work/images/components.tar" --directory="$root/usr/share/berth/preloaded" oci-layout index.json blobs
version=$(cat "$root/usr/share/berth/kubernetes-version")
# Remove berth's own files; keep Debian and Kubernetes.
rm -rf "$root"/usr/share/berth "$root"/usr/local/bin/berth* "$root"/etc/berth "$root"/etc/systemd/system/{berth,kubelet}* \
  "$root"/usr/lib/systemd/system/{berth,kubelet}* "$root"/etc/systemd/system/*.wants "$root"/etc/systemd/system.conf.d

echo "kindest: installing kind's files and containerd"
module=$(go mod download -json "sigs.k8s.io/kind@$kind" | jq -r .Dir)
cp -r --no-preserve=all "$module/images/base/files/." "$root"
chmod 755 "$root"/usr/local/bin/* "$root"/kind/bin/*
tar -xzf "$assets"/containerd-*.tar.gz -C "$root/usr/local"
install -D -m 755 "$assets/runc.$(go env GOARCH)" "$root/usr/local/sbin/runc"
mkdir -p "$root/opt/cni/bin" "$root/etc/kubernetes/manifests" "$root/kind/manifests"
tar -xzf "$assets"/cni-plugins-*.tgz -C "$root/opt/cni/bin"
"$root/usr/local/bin/ctr" oci spec \
  | jq '.hooks.createContainer += [{path: "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' > "$root/etc/containerd/cri-base.json"
for unit in kubelet containerd undo-mount-hacks; do
  mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
  ln -s "/etc/systemd/system/$unit.service" "$root/etc/systemd/system/multi-user.target.wants/$unit.service"
done
# A hook of kind's runs it for each container.
install -m 755 "$(command -v jq)" "$root/usr/local/bin/jq"
ldd "$(command -v jq)" | awk '$3 ~ /lib(jq|onig)/ {print $3}' | xargs -I{} cp -L {} "$root/usr/lib/"
printf '%s' "$version" > "$root/kind/version"
# If a controller of cgroup v1 is mounted nowhere on the host, systemd mounts it in the node after
# kind's entrypoint has created the kubelet's groups.
cat > "$root/etc/systemd/system/kubelet.service.d/20-groups.conf" <<'END'
[Service]
ExecStartPre=/bin/sh -c 'for h in /sys/fs/cgroup/*/; do [ ! -e $h/cgroup.procs ] || mkdir -p $h/kubelet $h/kubelet.slice; done'
END

# The pause process, and the programs of the pod network.
mkdir -p "$work/pause" "$work/network"/{bin,host,tmp}
gcc -O2 -static -o "$work/pause/pause" test/bench/pause/pause.c
archive registry.k8s.io/pause:3.10 "$work/pause" '{"Entrypoint": ["/pause"]}' "$work/images/pause.tar"
cp "$(command -v busybox)" "$work/network/bin/busybox"
for tool in sh chroot cat; do ln -s busybox "$work/network/bin/$tool"; done
archive docker.io/kindest/kindnetd:test "$work/network" '{"Env": ["PATH=/bin"]}' "$work/images/kindnetd.tar"
cp test/kube/kindnet.yaml "$root/kind/manifests/default-cni.yaml"

echo "kindest: loading images into containerd's store"
mkdir -p "$root/var/lib/containerd" "$work/state"
printf 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n' > "$work/config.toml"
"$root/usr/local/bin/containerd" --config "$work/config.toml" --root "$root/var/lib/containerd" --state "$work/state" \
  --address "$work/containerd.sock" > "$work/containerd.log" 2>&1 &
daemon=$!
until [ -S "$work/containerd.sock" ]; do
  kill -0 "$daemon" 2>/dev/null || { cat "$work/containerd.log" >&2; exit 1; }
  read -rt 0.1 < <(:) || true
done
for image in "$work"/images/*.tar; do
  "$root/usr/local/bin/ctr" --address "$work/containerd.sock" --namespace k8s.io images import \
    --label io.cri-containerd.pinned=pinned --all-platforms --no-unpack --digests "$image" > /dev/null
done
kill "$daemon"
wait "$daemon" || true
daemon=

echo "kindest: packing"
archive "docker.io/kindest/node:$version" "$root" '{"Env": ["container=docker"], "Entrypoint": ["/usr/local/bin/entrypoint", "/sbin/init"], "StopSignal": "SIGRTMIN+3"}' "$out"
