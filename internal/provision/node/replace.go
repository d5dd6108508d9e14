package node

import (
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/handover"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// replace adds the handover from the runtimes that the node ran before: images first, while both
// run, then pods, then the kubelet. It returns the tasks that come before the kubelet.
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
	b.add(tasks.File{M: b.meta("runtime"), Path: facts.ReplacedFile, Content: names.String()})
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

// moveKubelet points a kubelet that berth does not manage at the new runtime.
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
