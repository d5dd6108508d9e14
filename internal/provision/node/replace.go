package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/handover"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// replacement is the runtime of the node file, as one side of a handover.
func (b *builder) replacement() handover.Runtime {
	binary := map[string]string{"berth": b.berthBinary(), "docker": b.berthBinary(), "containerd": "ctr"}[b.rt.name]
	return handover.Runtime{Name: b.rt.name, Engine: facts.ReplaceableRuntimes()[b.rt.name].Engine, Endpoint: "unix://" + b.rt.socket, Binary: binary}
}

// replace adds the handover from the runtimes that the node ran before: images first, while both
// run, then pods, then the kubelet. It returns the tasks that come before the kubelet.
func (b *builder) replace() []string {
	if len(b.f.Replaced) == 0 || b.rt.socket == "" {
		return nil
	}
	to := b.replacement()
	var before, units []string
	var names strings.Builder
	for _, old := range b.f.Replaced {
		names.WriteString(old.Name + "\n")
		switch {
		case b.adopts(old):
			continue // beforeBerth has stopped it
		case !b.otherEngine(old): // or beforeBerth has stopped its pods
			b.drainBeside(old, to)
		}
		before = append(before, drainOf(old))
		units = union(units, old.Units) // berth's is one of two of them
	}
	// The new runtime may run in the unit of the old one.
	units = slices.DeleteFunc(units, func(unit string) bool { return unit == b.rt.criUnit })
	before = append(before, b.stop(units, append(slices.Clone(before), "unit "+b.rt.criUnit))...)
	b.add(tasks.File{M: b.meta("runtime"), Path: facts.ReplacedFile, Content: names.String()})
	if !b.n.Kubelet.Enabled && b.f.Kubelet {
		b.moveKubelet(to.Endpoint, before)
	}
	return before
}

// drainBeside adds the tasks that copy the images of a runtime and stop its pods while the new one
// runs beside it.
func (b *builder) drainBeside(old facts.Replaced, to handover.Runtime) {
	needs := []string{"unit " + b.rt.criUnit}
	if to.Binary != "" && old.Content != "" {
		adopt := handover.AdoptImages{M: b.meta("runtime", append(b.imageTasks(), needs...)...), Old: old.Runtime, New: to}
		b.add(adopt)
		needs = append(needs, adopt.ID())
	}
	b.add(b.drain(old, to, needs))
}

func (b *builder) drain(old facts.Replaced, to handover.Runtime, needs []string) handover.Drain {
	return handover.Drain{M: b.meta("runtime", needs...), Old: old.Runtime, New: to, Kubelet: b.f.Kubelet || b.n.Kubelet.Enabled}
}

func drainOf(old facts.Replaced) string { return handover.Drain{Old: old.Runtime}.ID() }

// otherEngine reports whether a replaced runtime is berth with another engine: it is the same unit,
// so the two do not run beside each other.
func (b *builder) otherEngine(old facts.Replaced) bool {
	return b.rt.criUnit == facts.BerthUnit && old.Engine != ""
}

// adopts reports whether berth takes over the pods of a replaced runtime when it starts: cri-dockerd
// made them in the same docker. It must not run beside berth, which would undo its work.
func (b *builder) adopts(old facts.Replaced) bool {
	return b.n.BerthOverDocker() && old.Name == facts.CRIDockerd
}

// beforeBerth adds the tasks that end the runtimes that do not run beside berth: the pods of its
// other engine stop, and so does cri-dockerd. They come after the task that starts what the new
// engine needs. It returns what berth's unit waits for.
func (b *builder) beforeBerth(after string) []string {
	var before []string
	for _, old := range b.f.Replaced {
		switch {
		case b.otherEngine(old):
			b.add(b.drain(old, b.replacement(), []string{after}))
			before = append(before, drainOf(old))
		case b.adopts(old):
			before = append(before, b.stop(old.Units, []string{after})...)
		}
	}
	return before
}

// stop adds the tasks that stop and disable units, one after the other.
func (b *builder) stop(units, after []string) []string {
	var stopped []string
	for _, unit := range units {
		no := false
		stop := tasks.Unit{M: b.meta("runtime", after...), Name: unit, Enable: &no, Running: tasks.Stopped, Optional: true}
		b.add(stop)
		stopped = append(stopped, stop.ID())
		after = []string{stop.ID()}
	}
	return stopped
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
	if b.f.KubeletSilent && b.f.KubeletConfig == "" {
		b.fieldError("runtime.name", fmt.Errorf("the kubelet names no endpoint, and has no configuration that could: give it --container-runtime-endpoint=%s: %w", endpoint, errs.State))
	}
	if at := b.f.KubeletFixed; at.Text != "" && crisock.Path(at.Text) != crisock.Path(endpoint) {
		b.fieldError("runtime.name", fmt.Errorf("the kubelet talks to %s (%s), and none of its files names that in a way that berth can change: have it talk to %s, or put --container-runtime-endpoint into a file that %s reads: %w",
			at.Text, at.From, endpoint, kubeletUnit, errs.State))
	}
	for _, file := range union([]string{kubelet.FlagsFile, kubelet.ConfigFile, kubelet.InstanceConfig}, b.f.KubeletFiles) {
		task := handover.KubeletEndpoint{M: provision.Meta{Why: "runtime", Needs: before, Restarts: []string{kubeletUnit}}, Path: file, Endpoint: endpoint}
		task.Add = b.f.KubeletSilent && file == b.f.KubeletConfig
		b.add(task)
		needs = append(needs, task.ID())
	}
	if !b.n.Kubelet.Kubeadm {
		b.add(tasks.Unit{M: provision.Meta{Why: "runtime", Needs: needs}, Name: kubeletUnit, Running: tasks.Started})
	}
}
