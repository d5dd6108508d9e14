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
			handover.Runtime{Name: "berth", Endpoint: "unix:///run/berth/berth.sock", Content: "/var/lib/berth"},
			[]string{"berth.service", SupervisorUnit},
		},
		"containerd": {
			handover.Runtime{Name: "containerd", Endpoint: "unix:///run/containerd/containerd.sock", Content: "/var/lib/containerd", Binary: "ctr"},
			[]string{"containerd.service"},
		},
		"crio": {handover.Runtime{Name: "crio", Endpoint: "unix:///var/run/crio/crio.sock"}, []string{"crio.service"}},
	}
}

// detectReplaced finds the runtimes that the node file replaces: the one that the kubelet talks to,
// those that berth node set up before, and those of an earlier handover. A runtime that serves
// another purpose is not one of them.
func detectReplaced(_ context.Context, host provision.Host, n *nodefile.Node) []Replaced {
	if !host.Live() || n.Runtime.Name == "docker" {
		return nil
	}
	files := host.Files()
	found := map[string]bool{}
	if data, err := provision.ReadFile(files, ReplacedFile); err == nil {
		for line := range strings.Lines(string(data)) {
			found[strings.TrimSpace(line)] = true
		}
	}
	endpoint := kubeletEndpoint(host)
	var list []Replaced
	for _, name := range slices.Sorted(maps.Keys(ReplaceableRuntimes())) {
		old := ReplaceableRuntimes()[name]
		if socket := crisock.Configured(files, name); socket != "" {
			old.Endpoint = "unix://" + socket
		}
		uses := endpoint != "" && crisock.Path(endpoint) == crisock.Path(old.Endpoint)
		if name == n.Runtime.Name || !uses && !found[name] && !provision.Exists(files, path.Join(OwnDir, name+".env")) {
			continue
		}
		if name == "containerd" && provision.Exists(files, "/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd") {
			old.Units = nil // docker needs it
		}
		old.Content = contentDir(files, old)
		list = append(list, old)
	}
	return list
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
