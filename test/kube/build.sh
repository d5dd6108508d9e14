#!/bin/bash
# build.sh OUT COMMAND...: builds Kubernetes commands (kubelet, kubectl, kubeadm,
# kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy) from the Go module
# k8s.io/kubernetes into OUT, etcd of the version that it names, and coredns, which is a
# module of its own, of the version that its kubeadm wants. Without a cache it takes three
# minutes for the kubelet, ten for all.
set -euo pipefail
version=${KUBERNETES_VERSION:-v1.36.3}
staging=v0.${version#v1.}
out=$(realpath -m "${1:?usage: build.sh OUT COMMAND...}")
shift
work=$out/module-$version
mkdir -p "$work"
cd "$work"
export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0

package() {
  case $1 in
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    *) echo "k8s.io/kubernetes/cmd/$1" ;;
  esac
}

{
  printf '//go:build tools\n\npackage kube\n\nimport (\n'
  for command in kubelet kubectl kubeadm kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd; do printf '\t_ "%s"\n' "$(package $command)"; done
  echo ")"
} > tools.go.new
if [ ! -e go.sum ] || ! cmp -s tools.go.new tools.go; then
  rm -f go.sum
  mod=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
  {
    echo "module kube"
    awk '$1=="go" || $1=="godebug"' "$mod"
    echo "require k8s.io/kubernetes $version"
    # Kubernetes replaces its staging modules by folders. Other modules need versions of them.
    awk -v v="$staging" '/=> \.\/staging/{print "replace", $(NF-2), "=>", $(NF-2), v}' "$mod"
  } > go.mod
  mv tools.go.new tools.go
  go mod tidy 2> tidy.log || { tail -5 tidy.log >&2; rm -f go.sum; exit 1; }
fi
# coredns is built in a module of its own: it needs other libraries than Kubernetes.
coredns() {
  local at
  at=$(sed -n 's/.*CoreDNSVersion = "\(.*\)"/\1/p' "$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)/cmd/kubeadm/app/constants/constants.go")
  [ "$(cat "$out/coredns.version" 2>/dev/null)" != "$at" ] || [ ! -x "$out/coredns" ] || return 0
  echo "kube: building coredns $at"
  mkdir -p "$out/module-coredns-$at"
  (
    cd "$out/module-coredns-$at"
    [ -e go.mod ] || { go mod init corednsmodule && go mod edit -require "github.com/coredns/coredns@$at"; } 2> init.log
    printf '//go:build tools\n\npackage coredns\n\nimport _ "github.com/coredns/coredns"\n' > tools.go
    [ -e go.sum ] || go mod tidy 2> tidy.log || { tail -5 tidy.log >&2; exit 1; }
    go build -trimpath -o "$out/coredns" -ldflags "-s -w" github.com/coredns/coredns
  )
  echo "$at" > "$out/coredns.version"
}

for command in "$@"; do
  [ "$command" != coredns ] || { coredns; continue; }
  [ "$(cat "$out/$command.version" 2>/dev/null)" != "$version" ] || [ ! -x "$out/$command" ] || continue
  echo "kube: building $command of Kubernetes $version"
  minor=${version#v1.}
  go build -trimpath -o "$out/$command" -ldflags "-s -w \
    -X k8s.io/component-base/version.gitVersion=$version -X k8s.io/component-base/version.gitMajor=1 \
    -X k8s.io/component-base/version.gitMinor=${minor%%.*} \
    -X k8s.io/client-go/pkg/version.gitVersion=$version" "$(package "$command")"
  echo "$version" > "$out/$command.version"
done
