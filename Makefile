# berth. `make demo` shows a pod from nothing; `make test` is what CI runs.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := build

PREFIX  ?= /usr/local
DESTDIR ?=
UNITDIR ?= /usr/lib/systemd/system

COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)$(shell git diff --quiet HEAD 2>/dev/null || echo -dirty)
DATE    := $(shell git show -s --format=%cs HEAD 2>/dev/null || echo unknown)
VERSION := $(shell ./build/version.sh)
PKG     := github.com/berthrun/berth
LDFLAGS := -s -w -X $(PKG)/internal/version.Version=$(VERSION) -X $(PKG)/internal/version.Commit=$(COMMIT) -X $(PKG)/internal/version.Date=$(DATE)

# The supervisor carries libcontainer: cgo, libseccomp, and no CRIU. It is static,
# so that a container's init does not page in a dynamic loader's work.
SUPERVISOR_TAGS := seccomp netgo osusergo runc_nocriu
# The program of its children is embedded in it.
CHILD           := internal/supervisor/ownstart/program
UNPACK          := internal/image/helper/program
DAEMON_TAGS     := netgo osusergo nri_no_wasm
TEST_TAGS       := $(SUPERVISOR_TAGS)
# Packages with tests on real parts, the longest one first: two of them run at once.
INTEGRATION     = ./test/integration $(filter-out ./test/integration,$(shell grep -rl --include='*_test.go' '^//go:build integration' internal pkg test | xargs -n1 dirname | sort -u | sed 's,^,./,'))

# Files with tests on real parts that are too long for CI, and the names of these tests.
LONG_FILES      = $(shell grep -rl --include='*_test.go' '^//go:build integration && e2e' internal pkg test | sed 's,^,./,')
LONG_TESTS      = $(shell grep -ho '^func Test[A-Za-z0-9]*' $(LONG_FILES) | cut -c6- | paste -sd '|')

# Tests that hold over any OCI runtime or shim that BERTH_HANDLER names.
HANDLER_TESTS = TestKillsUnderLoad|TestKeeperKilled|TestSupervisorKilled|TestAdoption$$|TestExitsWithout|TestExec$$|TestExecRuns|TestExecAcross|TestExecTerminal|TestTerminal|TestSignals|TestLifecycle|TestAttach|TestUpdate|TestOOMKill|TestCancelled|TestCrash$$|TestRPC$$|TestExecSync|TestFieldsOf|TestStreaming|TestLeak|TestStop|TestPodRunsLogs|TestReopen|TestLogLines|TestNoDescriptorLeaks

export GOFLAGS := -mod=readonly -buildvcs=false

.PHONY: build binaries docs recording style spelling packages packages-verify packages-test upgrade-matrix release-dry-run install install-cni install-kind install-crictl fmt lint unit fuzz integration integration-v2 power-loss test-arm64 e2e bench bench-check generate vulncheck verify demo test clean

build: deps-build binaries ## bin/berth, bin/berth-supervisor and the demo image
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/hello ./examples/hello
	./bin/hello image bin/hello-image.tar

# GOARCH and CC in the environment choose another architecture.
BIN = bin
binaries:
	@mkdir -p $(BIN)
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(UNPACK)/berth-unpack ./cmd/berth-unpack
	CGO_ENABLED=0 go build -trimpath -tags "$(DAEMON_TAGS) berth_unpack" -ldflags '$(LDFLAGS)' -o $(BIN)/berth ./cmd/berth
	CGO_ENABLED=1 go build -trimpath -tags "netgo osusergo" -ldflags '-s -w -linkmode external -extldflags "-static"' -o $(CHILD)/berth-init ./cmd/berth-init
	CGO_ENABLED=1 go build -trimpath -tags "$(SUPERVISOR_TAGS) berth_init" -ldflags '$(LDFLAGS) -linkmode external -extldflags "-static"' -o $(BIN)/berth-supervisor ./cmd/berth-supervisor

install: build ## binaries, units and, if absent, /etc/berth/berth.toml and /etc/crictl.yaml below DESTDIR
	install -D -m 0755 bin/berth $(DESTDIR)$(PREFIX)/bin/berth
	install -D -m 0755 bin/berth-supervisor $(DESTDIR)$(PREFIX)/bin/berth-supervisor
	install -d $(DESTDIR)$(UNITDIR)
	for unit in berth berth-supervisor berth-cluster; do sed 's#@BINDIR@#$(PREFIX)/bin#' build/$$unit.service > $(DESTDIR)$(UNITDIR)/$$unit.service || exit; done
	test -e $(DESTDIR)/etc/berth/berth.toml || { install -d $(DESTDIR)/etc/berth && bin/berth config default > $(DESTDIR)/etc/berth/berth.toml; }
	test -e $(DESTDIR)/etc/crictl.yaml || install -D -m 0644 build/crictl.yaml $(DESTDIR)/etc/crictl.yaml

# For programs such as Multus that execute CNI plugins. berth itself needs none of these.
CNI_DIR = /opt/cni/bin
CNI_PLUGINS = bandwidth bridge firewall host-local loopback portmap ptp tuning
.PHONY: berth-cni
berth-cni:
	CGO_ENABLED=0 go build -trimpath -tags "$(DAEMON_TAGS)" -ldflags '$(LDFLAGS)' -o $(BIN)/berth-cni ./cmd/berth-cni

install-cni: berth-cni ## berth's CNI plugins as programs below DESTDIR, in CNI_DIR; plugins that are there stay
	install -D -m 0755 bin/berth-cni $(DESTDIR)$(CNI_DIR)/berth-cni
	for plugin in $(CNI_PLUGINS); do test -e $(DESTDIR)$(CNI_DIR)/$$plugin || ln -s berth-cni $(DESTDIR)$(CNI_DIR)/$$plugin || exit; done

# A link beside an installed berth: the name that it is called by decides what it is.
install-kind: LINK = kind
install-crictl: LINK = crictl
install-kind install-crictl: ## a link to an installed berth, which then is kind, or crictl
	@test -e $(DESTDIR)$(PREFIX)/bin/berth || { echo "there is no $(DESTDIR)$(PREFIX)/bin/berth: run make install first" >&2; exit 1; }
	@test ! -e $(DESTDIR)$(PREFIX)/bin/$(LINK) || test "$$(readlink $(DESTDIR)$(PREFIX)/bin/$(LINK))" = berth || { echo "$(DESTDIR)$(PREFIX)/bin/$(LINK) is another program: remove it first" >&2; exit 1; }
	ln -sfn berth $(DESTDIR)$(PREFIX)/bin/$(LINK)

# Packages. The date of the commit is that of every file, so a second build has the same bytes.
PACKAGES       = out/packages
PACKAGE_ARCHES = amd64 arm64
packages packages-verify packages-test upgrade-matrix: export SOURCE_DATE_EPOCH := $(shell git show -s --format=%ct HEAD 2>/dev/null || echo 1)
packages packages-verify packages-test upgrade-matrix: export VERSION := $(VERSION)
packages packages-verify packages-test upgrade-matrix: export CNI_PLUGINS := $(CNI_PLUGINS)

packages: deps-build $(if $(filter-out $(shell go env GOHOSTARCH),$(PACKAGE_ARCHES)),deps-packages) ## .deb, .rpm, .apk, an archive, SBOM and checksums in out/packages; SIGN_COMMAND and SIGN_PACKAGE_COMMAND sign
	./build/packages/build.sh out/packages-bin $(PACKAGES) $$(./build/packages/arches.sh $(PACKAGE_ARCHES))

packages-verify: packages ## builds the packages of HEAD again in another directory, without a cache, and compares the bytes
	./build/packages/verify.sh $(PACKAGES)

# The steps of .github/workflows/release.yml.
.PHONY: release-test release-packages
release-test: test
	BERTH_REQUIRE=vulndb $(MAKE) vulncheck

release-packages: packages-verify
	go -C tools/packages vet ./... && go -C tools/packages test ./...
	./build/packages/notes.sh > out/release-notes.md

release-dry-run: ## the steps of the release workflow on this machine, without the database of vulnerabilities and without publishing
	$(MAKE) test
	$(MAKE) release-packages
	cat out/release-notes.md
	ls -l $(PACKAGES)

upgrade-matrix: build deps-test deps-vm ## the last three releases of build/releases.txt, down and up under load, on this machine and in a VM with the other version of cgroups; prints a table; hours
	BERTH_BIN=$(CURDIR)/bin TEST_TAGS="$(TEST_TAGS)" ./build/upgrade-matrix.sh

packages-test: build deps-test packages ## installs, upgrades, downgrades and removes the packages on systemd machines, with pods
	for release in debian-11 debian-12 debian-13 ubuntu-22.04 ubuntu-24.04 ubuntu-25.10; do ./test/systemd/image.sh $$release; done
	./test/systemd/debs.sh out/systemd-rpm dnf zypper rpm createrepo-c
	./build/packages/last.sh out/packages-last
	go -C tools/packages vet ./... && go -C tools/packages test ./...
	BERTH_BIN=$(CURDIR)/bin BERTH_PACKAGES=$(CURDIR)/$(PACKAGES) BERTH_PACKAGES_BEFORE=$(CURDIR)/out/packages-last go test -tags "e2e integration $(TEST_TAGS)" -count=1 -timeout 2h -v ./test/packages

fmt: ## write the code as gofumpt has it
	go tool -modfile=tools/go.mod golangci-lint fmt

lint: deps-build ## linters of .golangci.yaml
	go tool -modfile=tools/go.mod golangci-lint run --build-tags "integration $(TEST_TAGS)"

UNIT = ./...
unit: deps-build ## tests that need nothing, with the race detector
	go test -tags "$(TEST_TAGS)" $(VET) -race $(UNIT)
	go -C tools test ./docsite
	go -C test/sigstore vet ./... && go -C test/sigstore test ./...

FUZZTIME ?= 10m
FUZZ     ?= Fuzz

fuzz: deps-build ## each fuzz target for FUZZTIME, one after the other; FUZZ=FuzzFrame for those of a name
	@failed=0; while IFS=: read -r file target; do \
		target=$${target#func }; dir=./$$(dirname "$$file"); echo "--- $$target in $$dir"; \
		go test -tags "$(TEST_TAGS)" -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s "$$dir" </dev/null || failed=1; \
	done < <(grep -rEo --include='*_test.go' '^func $(FUZZ)[A-Za-z0-9]*' internal | sort); exit $$failed

integration: build deps-test ## tests on real parts; root
	./test/systemd/image.sh
	BERTH_BIN=$(CURDIR)/bin go test -tags "integration $(TEST_TAGS)" $(VET) -race -count=1 -timeout 1h -p 2 $(INTEGRATION)

integration-v2: build deps-vm ## the lifecycle suite in a VM with systemd and cgroup v2 only, and labels in one with SELinux
	BERTH_BIN=$(CURDIR)/bin ./test/vm/run.sh
	BERTH_BIN=$(CURDIR)/bin BERTH_VM_LSM=selinux ./test/vm/run.sh

ROUNDS ?= 50
power-loss: build deps-vm ## takes the power from a node at work in a VM, ROUNDS times; three to five minutes a round
	BERTH_BIN=$(CURDIR)/bin ./test/vm/power.sh $(ROUNDS)

# Packages with cgo, or with code that depends on the architecture.
ARM64 ?= ./internal/supervisor/... ./internal/sys/... ./internal/engine/seccomp ./internal/engine/docker/pause ./internal/engine/native/checkpoint/... ./internal/image/... ./internal/ocispec/...
test-arm64: deps-build deps-arm64 ## unit tests of code that depends on the architecture, and the programs, for arm64 by qemu; VERBOSE=1 shows each test
	./build/packages/binaries.sh out/packages-bin arm64
	TEST_TAGS="$(TEST_TAGS)" BIN=$(CURDIR)/out/packages-bin/arm64 ./test/arm64/run.sh $(ARM64)

e2e: build deps-test deps-e2e ## long crash and leak runs, a real kubelet; by hand; CRIO=ARCHIVE adds CRI-O's release, NERDCTL=PROGRAM a cluster of nerdctl
	./test/kube/build.sh out/kube kubelet kubeadm kubectl kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd coredns
	for release in debian-11 debian-12 debian-13 ubuntu-22.04 ubuntu-24.04 ubuntu-25.10; do ./test/systemd/image.sh $$release; done
	./test/systemd/containerd.sh out/systemd-assets
	./test/systemd/debs.sh out/systemd-debs conmon podman
	./test/systemd/debs.sh out/systemd-rpm dnf zypper rpm createrepo-c
	./test/kube/conformance.sh out/conformance
	BERTH_REQUIRE=binary:promtool go test -tags "$(TEST_TAGS)" -count=1 -run '^(TestExamplesAreValid|TestQueriesAreValid)$$' ./internal/metrics ./test/dashboards
	KUBEADM=$(CURDIR)/out/kube/kubeadm BERTH_REQUIRE=env:KUBEADM go test -tags "$(TEST_TAGS)" -count=1 ./internal/provision/kubeadmconf
	BERTH_ENGINE=docker BERTH_BIN=$(CURDIR)/bin go test -tags "integration $(TEST_TAGS)" -count=1 -timeout 2h -run "$$(go run ./test/coverage -docker-tests)" -v ./test/integration
	for handler in $$(command -v runc containerd-shim-runc-v2) $${BERTH_RUNSC_SHIM:-}; do slow=1; [[ $$handler != *runsc* ]] || slow=3; BERTH_TEST_SLOW=$$slow BERTH_HANDLER=$$handler BERTH_BIN=$(CURDIR)/bin go test -tags "integration $(TEST_TAGS)" -count=1 -timeout 1h -p 1 -run '^($(HANDLER_TESTS))' ./internal/supervisor/server ./test/integration || exit; done
	BERTH_REQUIRE=$${BERTH_REQUIRE:+$$BERTH_REQUIRE,}binary:chromium BERTH_BIN=$(CURDIR)/bin go test -tags "e2e integration $(TEST_TAGS)" -count=1 -timeout 2h -p 1 -run '^($(LONG_TESTS))$$' -v $(sort $(dir $(LONG_FILES)))
	BERTH_BIN=$(CURDIR)/bin KUBELET=$(CURDIR)/out/kube/kubelet go test -tags "e2e integration $(TEST_TAGS)" -count=1 -timeout 5h -p 1 -v ./test/e2e/... ./test/migrate
	$(MAKE) start-test

# What the pages install with apt, and what the build does.
START_PACKAGES = ca-certificates curl debootstrap gcc git libc6-dev libseccomp-dev make pkg-config
.PHONY: start-test
start-test: build deps-test ## follows the pages of docs/start line by line on fresh machines: to a pod, a cluster and a node
	./test/kube/build.sh out/kube kubelet kubeadm kubectl kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd coredns
	for release in debian-12 debian-13; do ./test/systemd/image.sh $$release; ./test/systemd/debs.sh -r $$release out/start-$$release --install-recommends $(START_PACKAGES); done
	BERTH_KUBE=$(CURDIR)/out/kube go test -tags "e2e integration $(TEST_TAGS)" -count=1 -timeout 1h ./test/start

bench: build deps-test deps-e2e ## side by side with containerd, a Docker Engine and kind; prints ratios; BENCH_CRIO and BENCH_CRI_DOCKERD add peers
	BERTH_BIN=$(CURDIR)/bin ./test/bench/run.sh
	./test/systemd/image.sh
	./test/systemd/containerd.sh out/systemd-assets
	BERTH_BIN=$(CURDIR)/bin go test -tags "bench $(TEST_TAGS)" -count=1 -run '^TestNode$$' -v ./test/bench
	./test/kube/build.sh out/kube kubelet kubeadm kubectl kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd coredns
	BERTH_BIN=$(CURDIR)/bin go test -tags "e2e bench integration $(TEST_TAGS)" -count=1 -timeout 2h -run '^TestClusterBesideKind$$' -v ./test/e2e

bench-check: build deps-test deps-e2e ## measures again, and compares the ratios with those of test/bench/ratios.json
	@test -e test/bench/ratios.json || { echo "test/bench/ratios.json is missing: run make bench on a quiet machine, then out/bench/bin/bench -out out/bench -write-ratios test/bench/ratios.json" >&2; exit 1; }
	BERTH_BIN=$(CURDIR)/bin ./test/bench/run.sh
	out/bench/bin/bench -out out/bench -check test/bench/ratios.json

generate: deps-build binaries ## docs and code that are made from the code and from .proto files
	go -C tools run ./protogen ../internal/berthapi/berthpb berth.proto
	$(BIN)/berth config reference > docs/config.md
	$(BIN)/berth metrics reference > docs/metrics.md
	$(BIN)/berth commands reference > docs/commands.md
	$(BIN)/berth doctor reference > docs/doctor.md
	$(BIN)/berth node reference > docs/node-reference.md
	$(BIN)/berth node schema > docs/node.schema.json
	$(BIN)/berth cluster reference > docs/cluster-reference.md
	$(BIN)/berth cluster schema > docs/cluster.schema.json
	go run ./test/coverage > docs/cri-coverage.md
	go run ./test/faults/page > docs/doctor-faults.md
	go -C tools run ./docsite -root .. -pictures

recording: build deps-demo deps-build ## docs/pictures/demo.cast and its picture, from a run of the demo
	set -o pipefail; TERM=xterm COLUMNS=104 ./build/demo.sh | go -C tools run ./docsite -record ../docs/pictures/demo.cast -title "make demo"
	go -C tools run ./docsite -root .. -pictures

docs: ## the site of the docs in out/docs, offline; a link that leads nowhere is a failure
	go -C tools run ./docsite -root .. -out ../out/docs

style: ## words and lines of the docs: test/docs/style
	go run ./test/docs/style

spelling: deps-verify ## spelling of the docs, the help texts and the examples: test/docs/spelling
	go run -tags "$(TEST_TAGS)" ./test/docs/spelling

vulncheck: ## known vulnerabilities that the code reaches; skipped where their database does not answer
	@go run ./test/vulncheck -tags "integration e2e bench $(TEST_TAGS)" ./...

verify: generate vulncheck docs style spelling ## generated files are as committed, modules are tidy, code is formatted, the docs' links, words and spelling are right, no known vulnerability
	git diff --exit-code -- docs/pictures docs/config.md docs/commands.md docs/metrics.md docs/doctor.md docs/doctor-faults.md docs/node-reference.md docs/node.schema.json docs/cluster-reference.md docs/cluster.schema.json docs/cri-coverage.md internal/berthapi/berthpb
	go mod tidy -diff && go -C test/sigstore mod tidy -diff
	go tool -modfile=tools/go.mod golangci-lint fmt --diff

demo: build deps-demo ## a pod from nothing, and nothing left behind
	./build/demo.sh

# Packages of INTEGRATION run once, with all of their tests. lint has run vet.
test: UNIT = $(filter-out $(INTEGRATION),$(patsubst $(PKG)/%,./%,$(shell go list -tags "$(TEST_TAGS)" ./...)))
test: VET = -vet=off
test: verify lint unit integration ## what CI runs

clean:
	rm -rf bin out

.PHONY: deps-build deps-verify deps-test deps-e2e deps-demo deps-vm deps-arm64 deps-packages
deps-build deps-verify deps-test deps-e2e deps-demo deps-vm deps-arm64 deps-packages: deps-%:
	@./build/deps.sh $*
