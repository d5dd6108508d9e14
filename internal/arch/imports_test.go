// Package arch holds the test of the import direction that docs/architecture.md
// draws.
package arch

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/berthrun/berth/"

// ban says that no package below from may import a package below to.
type ban struct {
	from, to, why string
}

func bans() []ban {
	backend := []string{"internal/engine", "internal/image", "internal/network", "internal/store"}
	var all []ban
	for _, from := range backend {
		all = append(all,
			ban{from, "internal/pod", "a backend serves the rules and does not know them"},
			ban{from, "internal/cri", "a backend knows no protocol"})
	}
	for _, daemon := range []string{"pod", "cri", "engine", "image", "network", "supervisor", "ocispec", "store", "config"} {
		all = append(all,
			ban{"internal/provision", "internal/" + daemon, "what sets up a node reaches the daemon by its files and its binary"},
			ban{"internal/" + daemon, "internal/provision", "the daemon does not know who set it up"})
	}
	for _, other := range []string{"pod", "cri", "engine", "image", "network", "supervisor", "ocispec", "store", "config", "provision"} {
		all = append(all,
			ban{"internal/cluster", "internal/" + other, "what makes clusters reaches a node's parts by the binary in the node"},
			ban{"internal/" + other, "internal/cluster", "a node does not know what made it"})
	}
	return append(all,
		ban{"internal/cluster/config", "internal/cluster/plan", "the description is plain data"},
		ban{"internal/cluster/config", "internal/cluster/kubeadm", "the description is plain data"},
		ban{"internal/cluster/patch", "internal/cluster", "patches know no cluster"},
		ban{"internal/cluster/kubeconfig", "internal/cluster", "kubeconfig files know contexts only"},
		ban{"internal/cluster/plan", "internal/cluster/kubeadm", "containers and what runs in them are planned apart"},
		ban{"internal/cluster/plan", "internal/cluster/provider", "a plan is in no engine's words"},
		ban{"internal/cluster/nodeimage", "internal/cluster", "an image is made without a cluster or an engine"},
		ban{"internal/cluster/innode", "internal/cluster", "a node does not know how its cluster is made"},
		ban{"internal/cluster/kubeapi", "internal/cluster", "asking an API server takes a kubeconfig, and no more"},
		ban{"internal/cluster/provider", "internal/cluster/kubeadm", "what makes containers knows nothing of what runs in them"},
		ban{"internal/cluster/provider", "internal/cluster/kubeconfig", "what makes containers knows nothing of what runs in them"},
		ban{"internal/cluster/provider/command", "internal/cluster/plan", "running a tool knows no cluster"},
		ban{"internal/manifest", "internal/cluster", "reading documents knows no kind of document"},
		ban{"internal/pod", "internal/cri", "the rules know no protocol"},
		ban{"internal/pod", "internal/engine/native", "the rules know backends by their interface only"},
		ban{"internal/pod", "internal/supervisor", "the rules know backends by their interface only"},
		ban{"internal/pod", "internal/ocispec", "an OCI spec is the native engine's business"},
		ban{"internal/pod", "internal/config", "only cli reads configuration"},
		ban{"internal/engine", "internal/network", "the rules join engine and network, nobody else"},
		ban{"internal/network", "internal/engine", "the rules join engine and network, nobody else"},
		ban{"internal/image", "internal/engine", "images know nothing of containers"},
		ban{"internal/image", "internal/network", "images know nothing of networks"},
		ban{"internal/ocispec", "internal/supervisor", "the spec is a pure value"},
		ban{"internal/ocispec", "internal/engine", "the spec is a pure value"},
		ban{"internal/supervisor", "internal/engine", "the supervisor knows nothing of the daemon but specs and log lines"},
		ban{"internal/supervisor", "internal/pod", "the supervisor knows nothing of the daemon but specs and log lines"},
		ban{"internal/supervisor", "internal/image", "the supervisor knows nothing of the daemon but specs and log lines"},
		ban{"internal/supervisor", "internal/network", "the supervisor knows nothing of the daemon but specs and log lines"},
		ban{"internal/supervisor", "internal/ocispec", "the supervisor runs specs and makes none"},
		ban{"internal/config", "internal/pod", "configuration is plain data"},
		ban{"internal/provision/tasks", "internal/provision/node", "tasks know no node file"},
		ban{"internal/provision/engine", "internal/provision/tasks", "the engine knows tasks by their interface only"},
		ban{"internal/provision/render", "internal/provision/machine", "a rendering touches no machine"},
		ban{"internal/provision/tasks", "internal/provision/render", "tasks do not know what they are rendered as"},
		ban{"internal/manifest", "internal/provision", "reading documents knows no kind of document"},
		ban{"internal/provision/node/nodefile", "internal/provision", "the description is plain data"},
		ban{"internal/provision/node/distro", "internal/provision", "the table of distributions is plain data"},
		ban{"internal/crilog", "internal/", "log lines are pure: nothing of ours is needed to write or read them"},
		ban{"internal/hoststoml", "internal/", "nodes and clusters describe registries in words of their own"},
		ban{"internal/errs", "internal/", "everything may import errs, so it imports nothing"},
		ban{"internal/undo", "internal/", "everything may import undo, so it imports nothing"},
	)
}

func TestImportDirection(t *testing.T) {
	imports := load(t)
	for _, b := range bans() {
		for from, tos := range imports {
			if !below(from, b.from) {
				continue
			}
			for _, to := range tos {
				if below(to, b.to) && !below(to, b.from) {
					t.Errorf("%s imports %s: %s", from, to, b.why)
				}
			}
		}
	}
}

// TestOnlyCLIReadsConfig: configuration reaches every package as its own plain
// Config, so that none depends on the file's shape.
func TestOnlyCLIReadsConfig(t *testing.T) {
	for from, tos := range load(t) {
		for _, to := range tos {
			if to == "internal/config" && !below(from, "internal/cli") {
				t.Errorf("%s imports internal/config: only cli reads configuration", from)
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

// below tells whether a package is dir or lies in it; "internal/" covers all.
func below(pkg, dir string) bool {
	return pkg == dir || strings.HasPrefix(pkg, strings.TrimSuffix(dir, "/")+"/")
}
