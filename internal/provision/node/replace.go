package node

import (
	"context"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/node/handover"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// replacedFile names the runtimes that this node ran before, one a line, so that a
// handover stays in the target when the kubelet has forgotten them.
const replacedFile = ownDir + "/replaced"

// Replaced is a runtime that the description's runtime takes the place of.
type Replaced struct {
	handover.Runtime
	// Units of it are stopped and disabled, one after the other: one that still runs would
	// start the next again.
	Units []string
}

// runtimes are the CRI runtimes whose pods can be moved, by name.
func runtimes() map[string]Replaced {
	return map[string]Replaced{
		"berth": {
			handover.Runtime{Name: "berth", Endpoint: "unix:///run/berth/berth.sock", Content: "/var/lib/berth"},
			[]string{"berth.service", supervisorUnit},
		},
		"containerd": {
			handover.Runtime{Name: "containerd", Endpoint: "unix:///run/containerd/containerd.sock", Content: "/var/lib/containerd", Binary: "ctr"},
			[]string{"containerd.service"},
		},
		"crio": {handover.Runtime{Name: "crio", Endpoint: "unix:///var/run/crio/crio.sock"}, []string{"crio.service"}},
	}
}

// detectReplaced finds the runtimes that the description replaces: the one that the
// kubelet talks to, those that berth node set up before, and those of an earlier
// handover. A runtime that somebody runs for other ends is none.
func detectReplaced(_ context.Context, host provision.Host, n *nodefile.Node) []Replaced {
	if !host.Live() || n.Runtime.Name == "docker" {
		return nil
	}
	files := host.Files()
	found := map[string]bool{}
	if data, err := readFile(files, replacedFile); err == nil {
		for line := range strings.Lines(string(data)) {
			found[strings.TrimSpace(line)] = true
		}
	}
	endpoint := kubeletEndpoint(host)
	var list []Replaced
	for _, name := range slices.Sorted(maps.Keys(runtimes())) {
		old := runtimes()[name]
		if socket := crisock.Configured(files, name); socket != "" {
			old.Endpoint = "unix://" + socket
		}
		uses := endpoint != "" && socketOf(endpoint) == socketOf(old.Endpoint)
		if name == n.Runtime.Name || !uses && !found[name] && !isThere(files, path.Join(ownDir, name+".env")) {
			continue
		}
		if name == "containerd" && isThere(files, "/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd") {
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
	if data, err := readFile(files, config); err == nil {
		if m := regexp.MustCompile(`(?m)^root\s*=\s*['"]([^'"]+)['"]`).FindSubmatch(data); m != nil {
			root = string(m[1])
		}
	}
	return path.Join(root, below)
}

// replace moves the node from the runtimes that it ran before: images first, while
// both run, then pods, then the kubelet. What it returns comes before the kubelet.
func (b *builder) replace() []string {
	if len(b.f.Replaced) == 0 || b.rt.socket == "" {
		return nil
	}
	to := handover.Runtime{Name: b.rt.name, Endpoint: "unix://" + b.rt.socket, Binary: map[string]string{"berth": b.berthBinary(), "containerd": "ctr"}[b.rt.name]}
	var before []string
	var names strings.Builder
	for _, old := range b.f.Replaced {
		names.WriteString(old.Name + "\n")
		drain := handover.Drain{M: b.meta("runtime", "unit "+b.rt.unit), Old: old.Runtime, New: to, Kubelet: b.f.Kubelet || b.n.Kubelet.Enabled}
		if to.Binary != "" && old.Content != "" {
			adopt := handover.AdoptImages{M: b.meta("runtime", append(b.imageTasks(), "unit "+b.rt.unit)...), Old: old.Runtime, New: to}
			b.add(adopt)
			drain.M.Needs = append(drain.M.Needs, adopt.ID())
		}
		b.add(drain)
		before = append(before, drain.ID())
		last := drain.ID()
		for _, unit := range old.Units {
			no := false
			stop := tasks.Unit{M: b.meta("runtime", last), Name: unit, Enable: &no, Running: tasks.Stopped, Optional: true}
			b.add(stop)
			before = append(before, stop.ID())
			last = stop.ID()
		}
	}
	b.add(tasks.File{M: b.meta("runtime"), Path: replacedFile, Content: names.String()})
	if !b.n.Kubelet.Enabled && b.f.Kubelet {
		b.moveKubelet(to.Endpoint, before)
	}
	return before
}

// union lists what is in either, each once.
func union(lists ...[]string) []string {
	var all []string
	for _, name := range slices.Concat(lists...) {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// moveKubelet points a kubelet that somebody else set up at the new runtime.
func (b *builder) moveKubelet(endpoint string, before []string) {
	needs := slices.Clone(before)
	for _, file := range union([]string{kubelet.FlagsFile, kubelet.ConfigFile}, b.f.KubeletFiles) {
		task := handover.KubeletEndpoint{M: provision.Meta{Why: "runtime", Needs: before, Restarts: []string{kubeletUnit}}, Path: file, Endpoint: endpoint}
		b.add(task)
		needs = append(needs, task.ID())
	}
	if !b.n.Kubelet.Kubeadm {
		b.add(tasks.Unit{M: provision.Meta{Why: "runtime", Needs: needs}, Name: kubeletUnit, Running: tasks.Started})
	}
}
