// Package node turns a node file into the tasks that make a machine a node. Build is pure: equal
// node files and equal facts give equal tasks, and its golden files show what each distribution and
// runtime gets. Package facts reads the machine first.
package node

import (
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// Build returns what a machine should be. The error joins every reason why the node file does not
// fit the machine, each naming its field.
func Build(n *nodefile.Node, f facts.Facts) (provision.Target, error) {
	b := &builder{n: n, f: f, rt: runtimeOf(n, f)}
	for _, step := range []func(){
		b.pluginDirs,
		b.accounts,
		b.packages,
		b.modules, b.sysctls, b.swap,
		b.data, b.install, b.cniPlugins,
		b.registries, b.devices, b.cniConfig, b.runtimeConfig,
		b.environment,
		b.files, b.units, b.hooks,
		b.masquerade,
		b.runtimeUnit,
		b.crictl, b.images, b.logs,
		func() { b.kubelet(b.replace()) },
		b.boot,
		b.gates,
	} {
		step()
	}
	b.unique()
	if len(b.faults) > 0 {
		return provision.Target{}, b.faults
	}
	return b.target, nil
}

// builder gathers the tasks of one node.
type builder struct {
	n      *nodefile.Node
	f      facts.Facts
	rt     runtime
	target provision.Target
	faults nodefile.FieldErrors
	// ready are the tasks that come before the runtime starts.
	ready []string
	// installed are those of them that bring binaries and packages. Files come after them, so that
	// a package does not conflict with our files.
	installed []string
	// heldDirs are the directories that are held.
	heldDirs []string
	// cniDirs are the directories that the runtime takes CNI plugins from.
	cniDirs []string
	// dockerGroup is the task of the group that docker's packages would make.
	dockerGroup []string
}

// fault reports that a field does not fit this machine.
func (b *builder) fault(kind error, path, format string, args ...any) {
	b.faults = append(b.faults, nodefile.NewFieldError(kind, path, format, args...))
}

// fieldError reports an error that names a field.
func (b *builder) fieldError(path string, err error) {
	b.faults = append(b.faults, nodefile.WrapFieldError(path, err))
}

func (b *builder) add(task provision.Task) {
	b.target.Tasks = append(b.target.Tasks, task)
}

// before adds a task that the runtime's start waits for.
func (b *builder) before(task provision.Task) {
	b.add(task)
	b.ready = append(b.ready, task.ID())
}

// unique refuses two tasks for one object, such as a user's file that berth writes too.
func (b *builder) unique() {
	seen := map[string]string{}
	for _, task := range b.target.Tasks {
		// A file, a link and a directory of one path are one object.
		key := task.ID()
		if kind, path, found := strings.Cut(key, " /"); found && slices.Contains([]string{"file", "link", "dir", "json", "sysctls", "modules"}, kind) {
			key = "path /" + path
		}
		if other, taken := seen[key]; taken {
			ours, yours := other, task.Meta().Why
			if isOwn(other) {
				ours, yours = yours, other
			}
			b.fault(errs.Invalid, yours, "%s is set by %s too; leave one of them out", task.ID(), ours)
			continue
		}
		seen[key] = task.Meta().Why
	}
}

// isOwn reports whether a task's reason is the user's own files, units or hooks.
func isOwn(why string) bool {
	return strings.HasPrefix(why, "files[") || strings.HasPrefix(why, "units[") || strings.HasPrefix(why, "hooks[")
}
