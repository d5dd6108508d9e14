package facts

import (
	"context"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
	"github.com/berthrun/berth/internal/provision/node/handover"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// ReplacedFile names the runtimes that this node ran before, one a line, so that a handover stays
// in the target when the kubelet no longer names them.
const ReplacedFile = OwnDir + "/replaced"

// CRIDockerd is the name of the runtime that serves CRI over docker as berth does.
const CRIDockerd = "cri-dockerd"

// Replaced is a runtime that the node file's runtime replaces.
type Replaced struct {
	handover.Runtime
	// Units lists its units, in the order in which they are stopped and disabled: one that still
	// runs would start the next again.
	Units []string
}

// ReplaceableRuntimes are the CRI runtimes whose pods can move to another, by name.
func ReplaceableRuntimes() map[string]Replaced {
	return map[string]Replaced{
		"berth": {
			handover.Runtime{Name: "berth", Engine: "native", Endpoint: "unix:///run/berth/berth.sock", Content: "/var/lib/berth"},
			[]string{BerthUnit, SupervisorUnit},
		},
		"containerd": {
			handover.Runtime{Name: "containerd", Endpoint: "unix:///run/containerd/containerd.sock", Content: "/var/lib/containerd", Binary: "ctr"},
			[]string{"containerd.service"},
		},
		"crio":     {handover.Runtime{Name: "crio", Endpoint: "unix:///var/run/crio/crio.sock"}, []string{"crio.service"}},
		CRIDockerd: {handover.Runtime{Name: CRIDockerd, Endpoint: "unix:///run/cri-dockerd.sock"}, []string{"cri-docker.socket", "cri-docker.service"}},
		"docker": {
			handover.Runtime{Name: "docker", Engine: "docker", Endpoint: "unix:///run/berth/berth.sock"},
			[]string{BerthUnit, "docker.socket", dockerUnit},
		},
	}
}

const dockerUnit = "docker.service"

// detectReplaced finds the runtimes that the node file replaces: the one that the kubelet talks to,
// those that berth node set up before, and those of an earlier handover. A runtime that serves
// another purpose is not one of them.
func detectReplaced(ctx context.Context, host provision.Host, n *nodefile.Node) []Replaced {
	if !host.Live() || n.Runtime.Name == "docker" && !n.BerthOverDocker() {
		return nil
	}
	files := host.Files()
	found := map[string]bool{}
	if data, err := provision.ReadFile(files, ReplacedFile); err == nil {
		for line := range strings.Lines(string(data)) {
			found[strings.TrimSpace(line)] = true
		}
	}
	endpoint, engine := kubeletEndpoint(host), crisock.BerthsEngine(files)
	var list []Replaced
	for _, name := range slices.Sorted(maps.Keys(ReplaceableRuntimes())) {
		old := ReplaceableRuntimes()[name]
		server := name
		if name == "docker" {
			server = "berth" // which serves its CRI
		}
		if socket := crisock.Configured(files, server); socket != "" {
			old.Endpoint = "unix://" + socket
		}
		uses := endpoint != "" && crisock.Path(endpoint) == crisock.Path(old.Endpoint) || provision.Exists(files, path.Join(OwnDir, name+".env"))
		if server == "berth" && engine != old.Engine {
			uses = false
		}
		if name == n.Runtime.Name || !uses && !found[name] {
			continue
		}
		old.Units = unitsToStop(ctx, host, n, old)
		old.Content = contentDir(files, old)
		list = append(list, old)
	}
	return list
}

// unitsToStop lists the units of a replaced runtime that nothing else on the machine needs.
func unitsToStop(ctx context.Context, host provision.Host, n *nodefile.Node, old Replaced) []string {
	switch old.Name {
	case "containerd":
		if n.Runtime.Name == "docker" || provision.Exists(host.Files(), "/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd") {
			return nil // docker needs it
		}
	case "docker":
		if hasOwnContainers(ctx, host) {
			return []string{BerthUnit}
		}
	}
	return old.Units
}

// hasOwnContainers reports whether docker runs containers that are not of pods.
func hasOwnContainers(ctx context.Context, host provision.Host) bool {
	return slices.ContainsFunc(dockersContainers(ctx, host), func(c handover.Container) bool { return !c.OfPod })
}

// contentDir is where a runtime keeps its blobs, below the root that its
// configuration names.
func contentDir(files provision.Files, old Replaced) string {
	root, below := old.Content, map[string]string{"berth": "images/content/blobs", "containerd": "io.containerd.content.v1.content/blobs"}[old.Name]
	if root == "" {
		return ""
	}
	config := map[string]string{"berth": "/etc/berth/berth.toml", "containerd": "/etc/containerd/config.toml"}[old.Name]
	if data, err := provision.ReadFile(files, config); err == nil {
		if m := regexp.MustCompile(`(?m)^root\s*=\s*['"]([^'"]+)['"]`).FindSubmatch(data); m != nil {
			root = string(m[1])
		}
	}
	return path.Join(root, below)
}
