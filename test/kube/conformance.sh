#!/bin/bash
# conformance.sh OUT: builds Kubernetes' own tests (e2e.test, ginkgo, agnhost) from the Go
# module k8s.io/kubernetes into OUT, and images.tar, the images that the tests in
# test/e2e/conformance.txt run: agnhost on a Debian with the tools that it has upstream on
# an Alpine, busybox, and web servers of busybox in the place of nginx and httpd. Uses no
# registry. Takes ten minutes without a cache. Needs root, debootstrap, jq and busybox-static.
set -euo pipefail
version=${KUBERNETES_VERSION:-v1.36.3}
staging=v0.${version#v1.}
out=$(realpath -m "${1:?usage: conformance.sh OUT}")
here=$(dirname "$(realpath "$0")")
recipe=$version-$(sha256sum "$here/conformance.sh" | cut -c1-16)
[ "$(cat "$out/recipe" 2>/dev/null)" != "$recipe" ] || exit 0
mkdir -p "$out/module"
cd "$out/module"
export GOFLAGS="${GOFLAGS:-} -mod=mod" GOWORK=off CGO_ENABLED=0

mod=$(go mod download -json "k8s.io/kubernetes@$version" | jq -r .GoMod)
printf '//go:build tools\n\npackage kube\n\nimport (\n\t_ "%s"\n\t_ "%s"\n\t_ "%s"\n)\n' \
  github.com/onsi/ginkgo/v2/ginkgo k8s.io/kubernetes/test/e2e k8s.io/kubernetes/test/images/agnhost > tools.go
{
  echo "module kube"
  awk '$1=="go" || $1=="godebug"' "$mod"
  echo "require k8s.io/kubernetes $version"
  awk '$1=="github.com/onsi/ginkgo/v2" {print "require", $1, $2}' "$mod"
  # Kubernetes replaces its staging modules by folders. Other modules need versions of them.
  awk -v v="$staging" '/=> \.\/staging/{print "replace", $(NF-2), "=>", $(NF-2), v}' "$mod"
} > go.mod
go mod tidy 2> tidy.log || { tail -5 tidy.log >&2; exit 1; }
echo "conformance: building agnhost, ginkgo and e2e.test of Kubernetes $version"
go build -trimpath -ldflags "-s -w" -o "$out/agnhost" k8s.io/kubernetes/test/images/agnhost
go build -trimpath -ldflags "-s -w" -o "$out/ginkgo" github.com/onsi/ginkgo/v2/ginkgo
go test -c -vet=off -trimpath -ldflags "-s -w" -o "$out/e2e.test" k8s.io/kubernetes/test/e2e

work=$(mktemp -d "${TMPDIR:-/tmp}/conformance.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/images"
echo '[]' > "$work/images/manifest.json"

# layer ROOT NAME: packs a directory.
layer() { tar --create --file="$work/images/$2.tar" --directory="$1" --numeric-owner --sort=name .; }

# image LAYER SETTINGS NAME...: adds an image of a layer to the archive.
image() {
  local layer=$1 settings=$2 diff id names
  shift 2
  diff=$(sha256sum "$work/images/$layer.tar" | cut -d' ' -f1)
  jq -nc --argjson config "$settings" --arg diff "sha256:$diff" --arg arch "$(go env GOARCH)" \
    '{architecture: $arch, os: "linux", config: $config, rootfs: {type: "layers", diff_ids: [$diff]}}' > "$work/config.json"
  id=$(sha256sum "$work/config.json" | cut -d' ' -f1)
  mv "$work/config.json" "$work/images/$id.json"
  names=$(printf '%s\n' "$@" | jq -nRc '[inputs]')
  jq -c --arg config "$id.json" --arg layer "$layer.tar" --argjson names "$names" \
    '. + [{Config: $config, RepoTags: $names, Layers: [$layer]}]' "$work/images/manifest.json" > "$work/manifest.json"
  mv "$work/manifest.json" "$work/images/manifest.json"
}

# tag NAME: prints the version of an image that the tests need, from their list of images.
list=$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)/test/utils/image/manifest.go
tag() { sed -n "s/.*configs\[$1\] *= Config{.*, \"\([^\"]*\)\"}/\1/p" "$list"; }

echo "conformance: making images"
readonly at=registry.k8s.io/e2e-test-images path='["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]'
debootstrap --variant=minbase --include=curl,bind9-dnsutils,netcat-openbsd,iproute2,iputils-ping,procps,wget,net-tools,bash-static bookworm "$work/agnhost" \
  > "$out/debootstrap.log" 2>&1 || { tail -5 "$out/debootstrap.log" >&2; exit 1; }
rm -rf "$work"/agnhost/{var/cache/apt,var/lib/apt,usr/share/doc,usr/share/man,usr/share/locale,dev,proc,sys}/*
install "$out/agnhost" "$work/agnhost/agnhost"
ln -s agnhost "$work/agnhost/agnhost-2"
mkdir "$work/agnhost/uploads"
echo 'user-defined-in-image:x:1000:1000::/home:/bin/sh' >> "$work/agnhost/etc/passwd"
printf 'user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n' >> "$work/agnhost/etc/group"
for file in localhost.crt localhost.key; do
  install -m 644 "$(dirname "$list")/../../images/agnhost/porter/$file" "$work/agnhost/$file"
done
layer "$work/agnhost" agnhost
image agnhost "{\"Env\": $path, \"Entrypoint\": [\"/agnhost\"], \"Cmd\": [\"pause\"], \"ExposedPorts\": {\"80/tcp\": {}}}" "$at/agnhost:$(tag Agnhost)" "$at/agnhost:$(tag AgnhostPrev)"
image agnhost "{\"Env\": $path}" "$at/glibc-dns-testing:$(tag GlibcDnsTesting)"
image agnhost "{\"Env\": $path, \"Entrypoint\": [\"/agnhost\"], \"Cmd\": [\"pause\"], \"User\": \"1234\"}" "$at/nonroot:$(tag NonRoot)"

mkdir -p "$work"/busybox/{bin,etc,root,tmp,usr/bin,usr/share/nginx/html}
chmod 1777 "$work/busybox/tmp"
cp "$(command -v busybox)" "$work/busybox/bin/busybox"
for applet in $("$work/busybox/bin/busybox" --list); do
  [ "$applet" = busybox ] || ln -s busybox "$work/busybox/bin/$applet"
done
# Debian's busybox has a shell that drops variables whose names are not identifiers. The tests with
# such names find their shell by PATH. A test that needs busybox's own builtins uses /bin/sh.
cp "$work/agnhost/bin/bash-static" "$work/busybox/usr/bin/sh"
echo 'root:x:0:0:root:/root:/bin/sh' > "$work/busybox/etc/passwd"
echo 'root:x:0:' > "$work/busybox/etc/group"
echo 'It works.' > "$work/busybox/usr/share/nginx/html/index.html"
layer "$work/busybox" busybox
image busybox '{"Env": ["PATH=/usr/bin:/bin"], "Cmd": ["sh"]}' "$at/busybox:$(tag BusyBox)"
image busybox '{"Env": ["PATH=/bin"], "Entrypoint": ["httpd", "-f", "-p", "80", "-h", "/usr/share/nginx/html"], "ExposedPorts": {"80/tcp": {}}}' \
  "$at/nginx:$(tag Nginx)" "$at/nginx:$(tag NginxNew)"

mkdir -p "$work"/nonewprivs/usr/local/bin
go build -trimpath -ldflags "-s -w" -o "$work/nonewprivs/usr/local/bin/nnp" k8s.io/kubernetes/test/images/nonewprivs
chmod ug+s "$work/nonewprivs/usr/local/bin/nnp"
layer "$work/nonewprivs" nonewprivs
image nonewprivs "{\"Env\": $path, \"Cmd\": [\"nnp\"]}" "$at/nonewprivs:$(tag Nonewprivs)"

# Some tests use the pause program of other runtimes.
mkdir "$work/pause"
CGO_ENABLED=1 gcc -O2 -static -o "$work/pause/pause" "$here/../bench/pause/pause.c"
layer "$work/pause" pause
image pause '{"Entrypoint": ["/pause"]}' "registry.k8s.io/pause:$(tag Pause)"

tar --create --file="$out/images.tar" --directory="$work/images" $(ls "$work/images")
echo "$recipe" > "$out/recipe"
