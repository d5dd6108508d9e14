// Package arch tests the import direction that docs/architecture.md defines.
package arch

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/berthrun/berth/"

// ban says that no package below from may import a package below to.
type ban struct {
	from, to, why string
	// but is a package that may be imported anyway, with all packages below it; "" means none.
	but string
}

func bans() []ban {
	backend := []string{"internal/engine", "internal/image", "internal/network", "internal/store"}
	var all []ban
	for _, from := range backend {
		all = append(all,
			ban{from: from, to: "internal/pod", why: "a backend serves the rules and does not know them"},
			ban{from: from, to: "internal/cri", why: "a backend knows no protocol"},
			ban{from: from, to: "internal/berthapi", why: "a backend knows no protocol"},
			ban{from: from, to: "internal/criclient", why: "a backend serves the daemon and is no client of it"},
			ban{from: from, to: "internal/apisocket", why: "a backend knows no protocol"})
	}
	for _, daemon := range []string{"pod", "cri", "engine", "image", "network", "supervisor", "ocispec", "store", "config"} {
		all = append(all,
			ban{from: "internal/provision", to: "internal/" + daemon, why: "what sets up a node reaches the daemon by its files and its binary"},
			ban{from: "internal/" + daemon, to: "internal/provision", why: "the daemon does not know who set it up"})
	}
	for _, other := range []string{"pod", "cri", "engine", "image", "network", "supervisor", "ocispec", "store", "config", "provision"} {
		all = append(all,
			ban{from: "internal/cluster", to: "internal/" + other, why: "what makes clusters reaches a node's parts by the binary in the node"},
			ban{from: "internal/" + other, to: "internal/cluster", why: "a node does not know what made it"})
	}
	return append(all,
		ban{from: "internal/cluster/config", to: "internal/cluster/plan", why: "the description is plain data"},
		ban{from: "internal/cluster/config", to: "internal/cluster/kubeadm", why: "the description is plain data"},
		ban{from: "internal/cluster/patch", to: "internal/cluster", why: "patches know no cluster"},
		ban{from: "internal/cluster/kubeconfig", to: "internal/cluster", why: "kubeconfig files know contexts only"},
		ban{from: "internal/cluster/plan", to: "internal/cluster/kubeadm", why: "containers and what runs in them are planned apart"},
		ban{from: "internal/cluster/plan", to: "internal/cluster/provider", why: "a plan is in no engine's words"},
		ban{from: "internal/cluster/nodeimage", to: "internal/cluster", why: "an image is made without a cluster or an engine"},
		ban{from: "internal/cluster/images/imagefile", to: "internal/cluster", why: "an archive of images is read without a cluster or an engine"},
		ban{from: "internal/cluster/registry/server", to: "internal/cluster", why: "the registry serves images and knows no cluster"},
		ban{from: "internal/cluster/innode", to: "internal/cluster", why: "a node does not know how its cluster is made"},
		ban{from: "internal/cluster/kubeapi", to: "internal/cluster", why: "asking an API server takes a kubeconfig, and no more"},
		ban{from: "internal/cluster/provider", to: "internal/cluster/kubeadm", why: "what makes containers knows nothing of what runs in them"},
		ban{from: "internal/cluster/provider", to: "internal/cluster/kubeconfig", why: "what makes containers knows nothing of what runs in them"},
		ban{from: "internal/cluster/provider/command", to: "internal/cluster/plan", why: "running a tool knows no cluster"},
		ban{from: "internal/manifest", to: "internal/cluster", why: "reading documents knows no kind of document"},
		ban{from: "internal/pod", to: "internal/cri", why: "the rules know no protocol"},
		ban{from: "internal/pod", to: "internal/berthapi", why: "the rules know no protocol"},
		ban{from: "internal/cri", to: "internal/berthapi", why: "CRI and berth's own service are served side by side"},
		ban{from: "internal/berthapi", to: "internal/cri", why: "CRI and berth's own service are served side by side"},
		ban{from: "internal/berthapi", to: "internal/pod", why: "the service gets its jobs from the daemon's parts, by a function"},
		ban{from: "internal/criclient", to: "internal/cri", why: "a client shares messages with the server, and no code"},
		ban{from: "internal/apisocket", to: "internal/cri", why: "a socket serves any protocol"},
		ban{from: "internal/pod", to: "internal/engine/native", why: "the rules know backends by their interface only"},
		ban{from: "internal/pod", to: "internal/supervisor", why: "the rules know backends by their interface only"},
		ban{from: "internal/pod", to: "internal/ocispec", why: "an OCI spec is the native engine's business"},
		ban{from: "internal/pod", to: "internal/config", why: "only cli reads configuration"},
		ban{from: "internal/pod/record", to: "internal/pod", why: "records know nothing of what changes them"},
		ban{from: "internal/pod/view", to: "internal/pod/exits", why: "a view reads records and changes none"},
		ban{from: "internal/pod/view", to: "internal/pod/recovery", why: "a view reads records and changes none"},
		ban{from: "internal/pod/forward", to: "internal/engine", why: "ports are forwarded by the namespace in the record"},
		ban{from: "internal/pod/job", to: "internal/pod", why: "jobs know nothing of sandboxes, containers or records"},
		ban{from: "internal/pod/events", to: "internal/pod", why: "the order of events does not depend on what makes them"},
		ban{from: "internal/pod/podnet", to: "internal/pod/job", why: "attachments know no job"},
		ban{from: "internal/pod/plugins", to: "internal/pod/job", why: "events know no job"},
		ban{from: "internal/nri", to: "internal/", why: "plugins are served without knowing who reports to them", but: "internal/errs"},
		ban{from: "internal/engine", to: "internal/network", why: "the rules join engine and network, nobody else"},
		ban{from: "internal/network", to: "internal/engine", why: "the rules join engine and network, nobody else"},
		ban{from: "internal/image", to: "internal/engine", why: "images know nothing of containers"},
		ban{from: "internal/image", to: "internal/network", why: "images know nothing of networks"},
		ban{from: "internal/cri", to: "internal/ocispec", why: "what a request means is the engine's to check"},
		ban{from: "internal/cri/shape", to: "internal/", why: "the shape of a request is checked without knowing who serves it", but: "internal/errs"},
		ban{from: "internal/ocispec", to: "internal/supervisor", why: "the spec is a pure value"},
		ban{from: "internal/ocispec", to: "internal/cri", why: "the spec knows requests, and no server of them"},
		ban{from: "internal/ocispec", to: "internal/engine", why: "the spec is a pure value"},
		ban{from: "internal/supervisor", to: "internal/engine", why: "the supervisor knows nothing of the daemon but specs and log lines"},
		ban{from: "internal/supervisor", to: "internal/pod", why: "the supervisor knows nothing of the daemon but specs and log lines"},
		ban{from: "internal/supervisor", to: "internal/image", why: "the supervisor knows nothing of the daemon but specs and log lines"},
		ban{from: "internal/supervisor", to: "internal/network", why: "the supervisor knows nothing of the daemon but specs and log lines"},
		ban{from: "internal/supervisor", to: "internal/ocispec", why: "the supervisor runs specs and makes none"},
		ban{from: "internal/cli/podyaml", to: "internal/", why: "turning YAML into requests is pure: it asks no runtime", but: "internal/errs"},
		ban{from: "internal/cli/podyaml/document", to: "internal/cli/podyaml", why: "reading YAML knows no pod"},
		ban{from: "internal/cli/podrun/volumes", to: "internal/cri", why: "volumes are made on this host without the runtime"},
		ban{from: "internal/cli/crictl", to: "internal/berthapi", why: "crictl works with every runtime"},
		ban{from: "internal/supervisor/server/containers", to: "internal/supervisor/wire", why: "what is done with containers knows no connection"},
		ban{from: "internal/supervisor/server/ociruntime", to: "internal/supervisor", why: "the OCI runtime knows specs and no supervisor", but: "internal/supervisor/ownstart"},
		ban{from: "internal/supervisor/ownstart", to: "internal/supervisor", why: "what becomes a process of a container knows specs and no supervisor"},
		ban{from: "internal/supervisor/server/logpump", to: "internal/supervisor", why: "the log pump knows pipes and files and no supervisor"},
		ban{from: "internal/supervisor/keep", to: "internal/supervisor", why: "the keeper outlives supervisors of other versions and knows none"},
		ban{from: "internal/config", to: "internal/pod", why: "configuration is plain data"},
		ban{from: "internal/provision/tasks", to: "internal/provision/node", why: "tasks know no node file"},
		ban{from: "internal/provision/node/facts", to: "internal/provision/tasks", why: "facts are what tasks are planned from"},
		ban{from: "internal/provision/reconciler", to: "internal/provision/tasks", why: "the reconciler knows tasks by their interface only"},
		ban{from: "internal/provision/render", to: "internal/provision/machine", why: "a rendering touches no machine"},
		ban{from: "internal/provision/tasks", to: "internal/provision/render", why: "tasks do not know what they are rendered as"},
		ban{from: "internal/manifest", to: "internal/provision", why: "reading documents knows no kind of document"},
		ban{from: "internal/provision/node/nodefile", to: "internal/provision", why: "the description is plain data"},
		ban{from: "internal/provision/node/distro", to: "internal/provision", why: "the table of distributions is plain data"},
		ban{from: "internal/crilog", to: "internal/", why: "log lines are pure: nothing of ours is needed to write or read them"},
		ban{from: "internal/berthtoml", to: "internal/", why: "berth.toml is written without knowing who sets up a node"},
		ban{from: "internal/printable", to: "internal/", why: "text is made safe without knowing whose it is"},
		ban{from: "internal/podusage", to: "internal/", why: "lists of CRI are joined without asking anyone"},
		ban{from: "internal/nodepage", to: "internal/pod", why: "the page gets what it shows from the daemon's parts, by an interface"},
		ban{from: "internal/nodepage", to: "internal/engine", why: "the page gets what it shows from the daemon's parts, by an interface"},
		ban{from: "internal/finding", to: "internal/", why: "a finding is plain data for every doctor"},
		ban{from: "internal/leaks", to: "internal/pod", why: "leaks are found by names and files alone"},
		ban{from: "internal/leaks", to: "internal/engine", why: "leaks are found by names and files alone"},
		ban{from: "internal/doctor", to: "internal/leaks", why: "what a check is does not depend on what it looks at"},
		ban{from: "internal/doctor", to: "internal/provision", why: "what a check is does not depend on what it looks at"},
		ban{from: "internal/doctor", to: "internal/cluster", why: "what a check is does not depend on what it looks at"},
		ban{from: "internal/hoststoml", to: "internal/", why: "hosts.toml is written without knowing who describes registries"},
		ban{from: "internal/credential", to: "internal/", why: "a file with credentials is read without knowing who names it", but: "internal/errs"},
		ban{from: "internal/registries", to: "internal/provision", why: "node files and cluster files share the description of registries"},
		ban{from: "internal/registries", to: "internal/cluster", why: "node files and cluster files share the description of registries"},
		ban{from: "internal/sys", to: "internal/", why: "what the kernel offers is wrapped without knowing who uses it", but: "internal/errs"},
		ban{from: "internal/errs", to: "internal/", why: "everything may import errs, so it imports nothing"},
		ban{from: "internal/keyed", to: "internal/", why: "everything may import keyed, so it imports errs alone", but: "internal/errs"},
		ban{from: "internal/undo", to: "internal/", why: "everything may import undo, so it imports nothing"},
	)
}

// floors are the packages of the image store, from the highest to the lowest. No package imports
// one above it.
func floors() []string {
	return []string{
		"local",
		"check",
		"repair",
		"importdirs",
		"preload",
		"rootfs",
		"store",
		"layers",
		"snapshotters",
		"erofs",
		"database",
		"tree",
		"progress",
		"downloads",
		"names",
	}
}

func TestImageStoreIsBuiltUpwards(t *testing.T) {
	imports := load(t)
	order := floors()
	height := map[string]int{}
	for i, floor := range order {
		height["internal/image/"+floor] = len(order) - i
	}
	for pkg := range height {
		for _, to := range imports[pkg] {
			if height[to] >= height[pkg] {
				t.Errorf("%s imports %s, which is not below it", pkg, to)
			}
		}
	}
	for _, to := range imports["internal/image"] {
		if below(to, "internal/image") {
			t.Errorf("internal/image imports %s: the contract knows no implementation", to)
		}
	}
}

// TestImagesAreKnownByTheirContract: only tests and packages that open a store may import packages
// below internal/image.
func TestImagesAreKnownByTheirContract(t *testing.T) {
	for from, tos := range load(t) {
		if below(from, "internal/image") || below(from, "internal/cli") || !below(from, "internal/") || from == "internal/docker/dockertest" {
			continue
		}
		for _, to := range tos {
			if below(to, "internal/image") && to != "internal/image" {
				t.Errorf("%s imports %s: the contract, internal/image, is enough", from, to)
			}
		}
	}
}

// TestSpecIsBuiltUpwards: the packages that read and check a request do not import the package that
// computes the spec from it.
func TestSpecIsBuiltUpwards(t *testing.T) {
	imports := load(t)
	floors := []string{"internal/ocispec/defaults", "internal/ocispec", "internal/ocispec/check", "internal/ocispec/request", "internal/ocispec/fielderror"}
	for i, pkg := range floors {
		for _, to := range imports[pkg] {
			if slices.Contains(floors[:i+1], to) {
				t.Errorf("%s imports %s, which is not below it", pkg, to)
			}
		}
	}
}

func TestImportDirection(t *testing.T) {
	imports := load(t)
	for _, b := range bans() {
		for from, tos := range imports {
			if !below(from, b.from) {
				continue
			}
			for _, to := range tos {
				if below(to, b.to) && !below(to, b.from) && (b.but == "" || !below(to, b.but)) {
					t.Errorf("%s imports %s: %s", from, to, b.why)
				}
			}
		}
	}
}

// TestOnlyCLIReadsConfig: each package receives its configuration as its own plain Config, so no
// package depends on the format of the file.
func TestOnlyCLIReadsConfig(t *testing.T) {
	for from, tos := range load(t) {
		for _, to := range tos {
			if to == "internal/config" && !below(from, "internal/cli") {
				t.Errorf("%s imports internal/config: only cli reads configuration", from)
			}
		}
	}
}

// TestOneFileOpensTheNativeEngine: only one file of the daemon above the engine interface imports
// the native engine. This file opens it.
func TestOneFileOpensTheNativeEngine(t *testing.T) {
	const native, opener = "internal/engine/native", "internal/cli/daemon"
	for from, tos := range load(t) {
		for _, to := range tos {
			if below(to, native) && !below(from, native) && from != opener {
				t.Errorf("%s imports %s: what is above the engine knows its interface only", from, to)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join("..", "..", opener, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), module+native) && filepath.Base(file) != "native.go" {
			t.Errorf("%s imports %s: only native.go does", file, native)
		}
	}
}

// TestClientsOfTheDaemon: only the commands and one cluster provider are clients of the daemon's
// socket. All other code is part of the daemon, or runs its binary.
func TestClientsOfTheDaemon(t *testing.T) {
	const commands, provider = "internal/cli", "internal/cluster/provider/berth"
	for from, tos := range load(t) {
		if below(from, "internal/criclient") || below(from, commands) || from == provider || !below(from, "internal/") {
			continue
		}
		for _, to := range tos {
			if below(to, "internal/criclient") {
				t.Errorf("%s imports %s: only commands and the provider %s are clients of a daemon", from, to, provider)
			}
		}
	}
}

// load maps each package of the module to what it imports of the module.
func load(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	imports := map[string][]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		words := strings.Fields(line)
		from := strings.TrimPrefix(words[0], module)
		imports[from] = nil
		for _, to := range words[1:] {
			if ours, ok := strings.CutPrefix(to, module); ok {
				imports[from] = append(imports[from], ours)
			}
		}
	}
	return imports
}

// below reports whether a package is dir or lies in it; "internal/" covers all.
func below(pkg, dir string) bool {
	return pkg == dir || strings.HasPrefix(pkg, strings.TrimSuffix(dir, "/")+"/")
}
