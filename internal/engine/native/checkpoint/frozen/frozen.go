// Package frozen compares restored processes, which are stopped, with the request, by what the kernel says of them.
//
// Package criuimage lets CRIU read nothing that exceeds the request. This package does not rely on that, nor on CRIU
// and the OCI runtime: processes that differ are killed before they go on.
package frozen

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/engine/native/checkpoint/criuimage"
	"github.com/berthrun/berth/internal/engine/native/checkpoint/mountplan"
	"github.com/berthrun/berth/internal/errs"
)

// Restored are the processes of a container, all of them stopped.
type Restored struct {
	// Init is the pid of its init, Spec the spec of the request, Mounts its mounts, Rootfs its root filesystem on the host.
	Init   int
	Spec   *specs.Spec
	Mounts []mountplan.Mount
	Rootfs string
	// Cgroups are the directories of the container's cgroup.
	Cgroups map[string]string
	Limits  criuimage.Limits
}

// Check returns an error when a process may do more than the request allows, or is not stopped.
func (r *Restored) Check() error {
	pids, err := r.processes()
	if err != nil {
		return err
	}
	if !slices.Contains(pids, r.Init) {
		return differs(r.Init, "it is not in the container's cgroup")
	}
	init, err := r.namespacesOf(r.Init)
	if err != nil {
		return err
	}
	if err := r.checkNamespaces(init); err != nil {
		return err
	}
	mounts, err := r.checkMounts()
	if err != nil {
		return fmt.Errorf("the restored container: %w", err)
	}
	for _, pid := range pids {
		if err := r.checkProcess(pid, init, mounts); err != nil {
			return err
		}
	}
	return r.checkOthers(pids, init["mnt"])
}

// differs is the error of a process that is not as the request.
func differs(pid int, format string, args ...any) error {
	return fmt.Errorf("restored process %d: %s: %w", pid, fmt.Sprintf(format, args...), errs.Invalid)
}

// processes returns those in the container's cgroup, the same ones in each hierarchy.
func (r *Restored) processes() ([]int, error) {
	var all []int
	for _, name := range slices.Sorted(maps.Keys(r.Cgroups)) {
		data, err := os.ReadFile(filepath.Join(r.Cgroups[name], "cgroup.procs"))
		if err != nil {
			return nil, fmt.Errorf("cannot read the processes of the container's cgroup: %w", err)
		}
		var pids []int
		for _, field := range strings.Fields(string(data)) {
			pid, err := strconv.Atoi(field)
			if err != nil || pid <= 0 {
				return nil, fmt.Errorf("the container's cgroup %s has a process %q", r.Cgroups[name], field)
			}
			pids = append(pids, pid)
		}
		slices.Sort(pids)
		if all != nil && !slices.Equal(all, pids) {
			return nil, fmt.Errorf("the container's cgroups have different processes: %d in one, %d in %s: %w", all, pids, r.Cgroups[name], errs.Invalid)
		}
		all = pids
	}
	return all, nil
}

// kinds are the namespaces of a process, but for that of time: CRIU makes one, in which the clocks go on.
func kinds() []string { return []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"} }

// namespace is what the kernel knows a namespace by.
type namespace struct{ dev, ino uint64 }

func namespaceAt(path string) (namespace, error) {
	info, err := os.Stat(path)
	if err != nil {
		return namespace{}, err
	}
	st := info.Sys().(*syscall.Stat_t)
	return namespace{uint64(st.Dev), st.Ino}, nil //nolint:unconvert // 32 bits on some architectures
}

func (r *Restored) namespacesOf(pid int) (map[string]namespace, error) {
	all := map[string]namespace{}
	for _, kind := range kinds() {
		ns, err := namespaceAt(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			return nil, differs(pid, "cannot read its namespaces: %v", err)
		}
		all[kind] = ns
	}
	return all, nil
}

// checkNamespaces compares the init's with those of the spec: the one at a path, a new one, or that of the host.
func (r *Restored) checkNamespaces(init map[string]namespace) error {
	names := map[specs.LinuxNamespaceType]string{
		specs.CgroupNamespace: "cgroup", specs.IPCNamespace: "ipc", specs.MountNamespace: "mnt", specs.NetworkNamespace: "net",
		specs.PIDNamespace: "pid", specs.UTSNamespace: "uts",
	}
	wanted := map[string]string{}
	for _, ns := range r.Spec.Linux.Namespaces {
		if kind := names[ns.Type]; kind != "" {
			wanted[kind] = ns.Path
		}
	}
	for _, kind := range kinds() {
		path, own := wanted[kind]
		host, err := namespaceAt("/proc/self/ns/" + kind)
		if err == nil && own && path != "" {
			host, err = namespaceAt(path)
		}
		if err != nil {
			return fmt.Errorf("cannot read a namespace of the request: %w", err)
		}
		if fresh := own && path == ""; (init[kind] == host) == fresh {
			return differs(r.Init, "its namespace %s is not that of the request", kind)
		}
	}
	return nil
}

// checkProcess checks all threads of a process.
func (r *Restored) checkProcess(pid int, init map[string]namespace, mounts map[int]string) error {
	own, err := r.namespacesOf(pid)
	if err != nil {
		return err
	}
	for _, kind := range kinds() {
		if own[kind] != init[kind] {
			return differs(pid, "its namespace %s is not that of the container", kind)
		}
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return differs(pid, "%v", err)
	}
	zombie := false
	for _, thread := range threads {
		if zombie, err = r.checkThread(pid, fmt.Sprintf("/proc/%d/task/%s", pid, thread.Name())); err != nil {
			return err
		}
	}
	if zombie {
		return nil
	}
	if err := r.checkLimits(pid); err != nil {
		return err
	}
	return r.checkFiles(pid, mounts)
}

// checkOthers refuses processes that are in the container's mount namespace and not in its cgroup.
func (r *Restored) checkOthers(pids []int, mnt namespace) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || slices.Contains(pids, pid) {
			continue
		}
		other, err := namespaceAt(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if errors.Is(err, fs.ErrNotExist) || err != nil { // it has ended
			continue
		}
		if other == mnt {
			return differs(pid, "it is in the container's mount namespace, and not in its cgroup")
		}
	}
	return nil
}
