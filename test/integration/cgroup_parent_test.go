//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestProcessesAreBelowTheCgroupParent: all processes of a pod are below the cgroup that the
// kubelet limits, with any namespaces: containers, execs, and the init of a shared PID namespace
// (CVE-2025-47291).
func TestProcessesAreBelowTheCgroupParent(t *testing.T) {
	f := newFields(t, harness.Options{}, nil)
	node := func(change func(*runtimeapi.NamespaceOption)) podChange {
		return func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
			change(config.Linux.SecurityContext.NamespaceOptions)
			container.Linux.SecurityContext.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
		}
	}
	hostNetwork := func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		config.Hostname = ""
		node(func(o *runtimeapi.NamespaceOption) { o.Network = runtimeapi.NamespaceMode_NODE })(config, container)
	}
	for name, change := range map[string]podChange{
		"plain":            node(func(*runtimeapi.NamespaceOption) {}),
		"host-network":     hostNetwork,
		"host-pid":         node(func(o *runtimeapi.NamespaceOption) { o.Pid = runtimeapi.NamespaceMode_NODE }),
		"host-ipc":         node(func(o *runtimeapi.NamespaceOption) { o.Ipc = runtimeapi.NamespaceMode_NODE }),
		"shared-pid":       sharedProcesses,
		"users":            inUsers(nil),
		"users-network":    inUsers(hostNetwork),
		"users-shared-pid": inUsers(sharedProcesses),
		"privileged": func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
			config.Linux.SecurityContext.Privileged, container.Linux.SecurityContext.Privileged = true, true
		},
		"users-privileged": inUsers(func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
			config.Linux.SecurityContext.Privileged, container.Linux.SecurityContext.Privileged = true, true
		}),
	} {
		t.Run(name, func(t *testing.T) {
			defer func(parent testing.TB) { f.T = parent }(f.T)
			f.T = t
			if strings.HasPrefix(name, "users") {
				f.Needs(t, translate.UserNamespaces)
			}
			parent := f.burstable()
			pod := runPodWith(f.Berth, name, "sleep 1000", func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
				config.Linux.CgroupParent = parent
				change(config, container)
			})
			defer f.RemovePod(pod.Sandbox)
			target := f.Container("target", "sleep 1000")
			target.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{
				Network: pod.Config.Linux.SecurityContext.NamespaceOptions.Network, Ipc: pod.Config.Linux.SecurityContext.NamespaceOptions.Ipc,
				Pid: runtimeapi.NamespaceMode_TARGET, TargetId: pod.Container,
				UsernsOptions: pod.Config.Linux.SecurityContext.NamespaceOptions.UsernsOptions,
			}
			second := f.Create(pod.Sandbox, target, pod.Config)
			f.StartContainer(second)
			belowParent(t, "the container", strconv.Itoa(initOf(t, f.Berth, pod.Container)), parent)
			belowParent(t, "one that joins its processes", strconv.Itoa(initOf(t, f.Berth, second)), parent)
			if shown := inspectSandbox(t, f.Berth, pod.Sandbox); shown.path("pid") != "" {
				belowParent(t, "the pod's init", strconv.Itoa(shown.Pid), parent)
			}
			belowParent(t, "a command", execPid(t, f.Berth, pod.Container, name), parent)
		})
	}
}

// belowParent requires that the cgroups of a process are below the pod's, in every hierarchy that
// counts or limits anything here. /proc/PID/cgroup also lists a v1 hierarchy that is mounted in
// another mount namespace only. No process of this one can create a cgroup in it.
func belowParent(t *testing.T, who, pid, parent string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		t.Error(err)
		return
	}
	counted := 0
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || !onV2() && (strings.HasPrefix(parts[1], "name=") || !mountedV1(t, parts[1])) {
			continue
		}
		counted++
		if !strings.Contains(parts[2]+"/", strings.TrimSuffix(parent, "/")+"/") {
			t.Errorf("%s (%s) is in %s of %q, which is not below %s", who, pid, parts[2], parts[1], parent)
		}
	}
	if counted == 0 {
		t.Errorf("%s is in no cgroup: %s", who, data)
	}
}

// mountedV1 reports whether the v1 hierarchy of controllers ("cpu,cpuacct", as in
// /proc/PID/cgroup) is mounted in this mount namespace.
func mountedV1(t *testing.T, controllers string) bool {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line) // source, directory, type, options
		if len(fields) < 4 || fields[2] != "cgroup" {
			continue
		}
		options := strings.Split(fields[3], ",")
		missing := slices.ContainsFunc(strings.Split(controllers, ","), func(controller string) bool {
			return !slices.Contains(options, controller)
		})
		if !missing {
			return true
		}
	}
	return false
}

// execPid returns the host's pid of an exec that runs until its container ends.
func execPid(t *testing.T, b *harness.Berth, container, mark string) string {
	t.Helper()
	argument := "3600." + strconv.Itoa(os.Getpid()) // of this test's commands alone
	b.Exec(container, "setsid sleep "+argument+" >/dev/null 2>&1 </dev/null &")
	var found string
	b.Await("the command of "+mark, func() bool {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
			if err == nil && string(line) == "sleep\x00"+argument+"\x00" {
				found = entry.Name()
				return true
			}
		}
		return false
	})
	return found
}
