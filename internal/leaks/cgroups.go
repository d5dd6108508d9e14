package leaks

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"
)

// removeTime bounds the removal of a cgroup, whose processes may be slow to end.
const removeTime = 10 * time.Second

// shown is how many processes a finding names.
const shown = 5

// sandboxCgroups lists the cgroups of sandboxes whose request named no parent: only they are known to be
// this berth's. The others are below cgroups that the kubelet manages.
func sandboxCgroups(f *Facts) ([]object, error) {
	if !f.Native {
		return nil, nil
	}
	var all []object
	plain, err := f.Host.Cgroups("/berth-" + f.Instance)
	if err != nil {
		return nil, err
	}
	for _, c := range plain {
		o := f.cgroup(c, path.Base(c.Path))
		o.does = "removes the cgroup " + c.Path
		o.remove = func(ctx context.Context) error { return f.removeCgroup(ctx, c.Path, false) }
		if o.processes {
			o.does = fmt.Sprintf("kills the processes in the cgroup %s, and removes it", c.Path)
			o.remove = func(ctx context.Context) error { return f.removeCgroup(ctx, c.Path, true) }
		}
		all = append(all, o)
	}
	// systemd would start what is killed again, or miss that it is gone: it must stop its slices itself.
	slice := "berth_" + f.Instance
	slices, err := f.Host.Cgroups("/" + slice + ".slice")
	if err != nil {
		return nil, err
	}
	for _, c := range slices {
		name := path.Base(c.Path)
		id, ours := strings.CutPrefix(strings.TrimSuffix(name, ".slice"), slice+"-pod")
		if !ours {
			continue
		}
		o := f.cgroup(c, id)
		o.fix = "systemctl stop " + name
		all = append(all, o)
	}
	return all, nil
}

// cgroup describes one cgroup of a sandbox.
func (f *Facts) cgroup(c Cgroup, sandbox string) object {
	o := object{
		owner: sandbox, name: c.Path, key: c.Key, processes: len(c.Processes) > 0,
		evidence: fmt.Sprintf("the cgroup %s of sandbox %s has no processes and no record", c.Path, sandbox),
		fix:      "rmdir it in each hierarchy, innermost first",
	}
	if o.processes {
		list := strings.Join(c.Processes[:min(len(c.Processes), shown)], ", ")
		if more := len(c.Processes) - shown; more > 0 {
			list += fmt.Sprintf(" and %d more", more)
		}
		o.evidence = fmt.Sprintf("%s in the cgroup %s of sandbox %s, which has no record", list, c.Path, sandbox)
		o.fix = "kill them; then the cgroup is empty"
	}
	return o
}

func (f *Facts) removeCgroup(ctx context.Context, at string, kill bool) error {
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	return f.Host.RemoveCgroup(ctx, at, kill)
}

// processes lists cgroups that have some.
func processes(_ context.Context, f *Facts) ([]object, error) { return cgroupsWith(f, true) }

// emptyCgroups lists cgroups that have none.
func emptyCgroups(_ context.Context, f *Facts) ([]object, error) { return cgroupsWith(f, false) }

func cgroupsWith(f *Facts, processes bool) ([]object, error) {
	all, err := sandboxCgroups(f)
	if err != nil {
		return nil, err
	}
	var kept []object
	for _, o := range all {
		if o.processes == processes {
			kept = append(kept, o)
		}
	}
	return kept, nil
}
