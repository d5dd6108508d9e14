//go:build integration

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The bits of two capabilities in /proc/PID/status.
const (
	capKill     = 1 << 5
	capNetAdmin = 1 << 12
)

// TestFieldsOfSecurityContext: each field of a container's security context, as the container sees
// it, and as its status reports it.
func TestFieldsOfSecurityContext(t *testing.T) {
	f := newFields(t, harness.Options{}, nil)
	f.try(t, "sc.capabilities add/drop", func(t *testing.T) {
		caps := f.says(t, "grep CapEff /proc/self/status", func(c containerConfig) {
			containerSecurity(c).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"net_admin"}, DropCapabilities: []string{"ALL"}}
		})
		want(t, "effective", caps, fmt.Sprintf("CapEff:\t%016x", capNetAdmin))
	})
	f.try(t, "sc.add_ambient_capabilities", func(t *testing.T) {
		ambient := func(c containerConfig) {
			containerSecurity(c).RunAsUser = user(1000)
			containerSecurity(c).NoNewPrivs = true
			containerSecurity(c).Capabilities = &runtimeapi.Capability{
				AddAmbientCapabilities: []string{"KILL", "NET_ADMIN"}, DropCapabilities: []string{"ALL", "KILL"},
			}
		}
		if engineRefuses(t, f.Berth, translate.AmbientCapabilities, ofContainer(ambient), "add_ambient_capabilities") {
			return
		}
		caps := f.says(t, "grep -E 'Cap(Inh|Prm|Eff|Amb)' /proc/self/status | cut -f2", ambient)
		bits := fmt.Sprintf("%016x", capNetAdmin)
		want(t, "inheritable, permitted, effective, ambient of uid 1000", caps, strings.Join([]string{bits, bits, bits, bits}, " "))
	})
	f.try(t, "run_as_user/group/username, supplemental_groups + policy Merge/Strict", func(t *testing.T) { f.testUsers(t) })
	f.try(t, "readonly_rootfs, no_new_privs", func(t *testing.T) {
		const look = "grep NoNewPrivs /proc/self/status; echo x 2>/dev/null >/file && echo written || echo refused"
		want(t, "both", f.says(t, look, func(c containerConfig) {
			containerSecurity(c).NoNewPrivs, containerSecurity(c).ReadonlyRootfs = true, true
		}), "NoNewPrivs:\t1 refused")
		want(t, "neither", f.says(t, look, nil), "NoNewPrivs:\t0 written")
	})
	f.try(t, "masked_paths / readonly_paths (procMount)", func(t *testing.T) {
		f.NeedsOfHandler(t, harness.HostKernel)
		got := f.says(t, "wc -c </proc/version; echo 1 2>/dev/null >/proc/sys/vm/swappiness && echo written || echo refused", func(c containerConfig) {
			containerSecurity(c).MaskedPaths, containerSecurity(c).ReadonlyPaths = []string{"/proc/version"}, []string{"/proc/sys"}
		})
		want(t, "masked and read-only", got, "0 refused")
	})
	f.try(t, "sc.namespace pid CONTAINER/POD/NODE/TARGET", func(t *testing.T) { f.testPIDNamespaces(t) })
	f.try(t, "sc.privileged: the cgroup namespace", func(t *testing.T) { f.testCgroupNamespaces(t) })
	f.try(t, "stop_signal (CRI enum)", func(t *testing.T) {
		id := f.running(func(c containerConfig) {
			c.StopSignal = runtimeapi.Signal_SIGNAL_SIGUSR1
			c.Command[2] = "trap 'exit 9' USR1; touch /tmp/up; while :; do sleep 0.1; done"
		})
		want(t, "status", f.Status(id).StopSignal.String(), "SIGNAL_SIGUSR1")
		f.Await("the trap", func() bool { return f.ExecOut(id, "ls /tmp/up 2>/dev/null || echo none") == "/tmp/up" })
		if _, err := f.Runtime.StopContainer(f.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 20}); err != nil {
			t.Fatal(err)
		}
		if code := f.Status(id).ExitCode; code != 9 {
			t.Errorf("exit code %d", code)
		}
	})
	f.try(t, "seccomp RuntimeDefault/Unconfined/Localhost", func(t *testing.T) { f.testSeccomp(t) })
	f.try(t, "apparmor", func(t *testing.T) { f.testAppArmor(t) })
	f.try(t, "legacy seccomp and AppArmor annotations", func(t *testing.T) {
		const key = "container.apparmor.security.beta.kubernetes.io/old"
		f.running(func(c containerConfig) { c.Annotations = map[string]string{key: "localhost/none"} })
		if log := f.LogTail(); !strings.Contains(log, key) {
			t.Errorf("no warning names it: %s", log)
		}
	})
}

func (f *fields) testUsers(t *testing.T) {
	const id = "id -u; id -g; id -G"
	for name, c := range map[string]struct {
		change func(*runtimeapi.LinuxContainerSecurityContext)
		says   string
		groups []int64
	}{
		"nothing": {func(*runtimeapi.LinuxContainerSecurityContext) {}, "0 0 0", []int64{0}},
		"name":    {func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUsername = "web" }, "1000 1001 1001 1002", []int64{1001, 1002}},
		"user and group": {func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.RunAsGroup = user(1000), user(3000)
		}, "1000 3000 3000 1002", []int64{3000, 1002}},
		"merged": {func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.SupplementalGroups = user(1000), []int64{5000}
		}, "1000 1001 1001 1002 5000", []int64{1001, 1002, 5000}},
		"strict": {func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.SupplementalGroups = user(1000), []int64{5000}
			s.SupplementalGroupsPolicy = runtimeapi.SupplementalGroupsPolicy_Strict
		}, "1000 1001 1001 5000", []int64{1001, 5000}},
	} {
		container := f.running(func(config containerConfig) { c.change(containerSecurity(config)) })
		want(t, name, strings.ReplaceAll(f.ExecOut(container, id), "\n", " "), c.says)
		user := f.Status(container).GetUser().GetLinux()
		if fmt.Sprint(user.GetUid(), user.GetGid()) != strings.Join(strings.Fields(c.says)[:2], " ") || !slices.Equal(user.GetSupplementalGroups(), c.groups) {
			t.Errorf("%s: the status says %v", name, user)
		}
	}
	answer, err := f.Runtime.Status(f.Ctx(), &runtimeapi.StatusRequest{})
	if err != nil || !answer.Features.GetSupplementalGroupsPolicy() {
		t.Errorf("the policy is not reported as a feature: %v, %v", answer.GetFeatures(), err)
	}
}

func (f *fields) testPIDNamespaces(t *testing.T) {
	f.NeedsOfHandler(t, harness.ContainerProcesses)
	mode := func(mode runtimeapi.NamespaceMode, target string) func(containerConfig) {
		return func(c containerConfig) {
			containerSecurity(c).NamespaceOptions = &runtimeapi.NamespaceOption{Pid: mode, TargetId: target}
		}
	}
	own := f.running(mode(runtimeapi.NamespaceMode_CONTAINER, ""))
	// POD is also the mode of a request without a mode: the pod decides.
	left := f.running(func(c containerConfig) { containerSecurity(c).NamespaceOptions = nil })
	want(t, "left at the default", f.ExecOut(left, "cat /proc/1/comm; ps -o comm | grep -c '^sleep$'"), "sleep\n1")
	want(t, "CONTAINER", f.ExecOut(own, "cat /proc/1/comm"), "sleep")
	want(t, "TARGET", f.says(t, "tr '\\0' ' ' </proc/1/cmdline; echo", mode(runtimeapi.NamespaceMode_TARGET, own)), "sleep 100000 ")
	refused := func(name string, code codes.Code, target string, words ...string) {
		t.Helper()
		config := f.Container("target", "exit 0")
		mode(runtimeapi.NamespaceMode_TARGET, target)(config)
		_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
		checkRefusal(t, err, code, append(words, "target_id"))
	}
	waiting := f.create("exit 0", mode(runtimeapi.NamespaceMode_CONTAINER, ""))
	refused("not running", codes.FailedPrecondition, waiting, "does not run")
	refused("none", codes.InvalidArgument, "", "is missing")
	home, homeConfig := f.sandbox, f.config
	f.pod(func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	})
	refused("another pod's", codes.InvalidArgument, own, "another sandbox")
	// A container cannot choose what all containers of a pod share.
	for word, change := range map[string]func(*runtimeapi.NamespaceOption){
		"namespace_options.network": func(o *runtimeapi.NamespaceOption) { o.Network = runtimeapi.NamespaceMode_NODE },
		"namespace_options.ipc":     func(o *runtimeapi.NamespaceOption) { o.Ipc = runtimeapi.NamespaceMode_NODE },
		"userns_options": func(o *runtimeapi.NamespaceOption) {
			o.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: idRange(usersRoot), Gids: idRange(usersRoot)}
		},
	} {
		config := f.Container("apart", "exit 0")
		change(containerSecurity(config).NamespaceOptions)
		_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
		checkRefusal(t, err, codes.InvalidArgument, []string{word})
	}
	first := f.running(mode(runtimeapi.NamespaceMode_POD, ""))
	if seen := f.says(t, "ps -o args", mode(runtimeapi.NamespaceMode_POD, "")); !strings.Contains(seen, "sleep 100000") || !strings.Contains(seen, f.PodInit()) {
		t.Errorf("POD sees %q of %s", seen, first)
	}
	f.pod(func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
	})
	host, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	want(t, "NODE", f.says(t, "readlink /proc/self/ns/pid", mode(runtimeapi.NamespaceMode_NODE, "")), host)
	f.sandbox, f.config = home, homeConfig
}

// testCgroupNamespaces: a privileged container sees the cgroups of the host, as programs expect
// that manage the node, unless it requests a namespace of its own.
func (f *fields) testCgroupNamespaces(t *testing.T) {
	f.NeedsOfHandler(t, harness.HostKernel)
	host, err := os.Readlink("/proc/self/ns/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	before := cgroupMounts(t)
	own := func(name, got string) {
		t.Helper()
		if got == host || !strings.HasPrefix(got, "cgroup:[") {
			t.Errorf("%s: %q, and the host's is %q", name, got, host)
		}
	}
	const look = "readlink /proc/self/ns/cgroup"
	annotate := func(value string) map[string]string { return map[string]string{"run.berth.cgroupns": value} }
	own("plain", f.says(t, look, nil))
	_, err = f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, SandboxConfig: f.config, Config: func() containerConfig {
		config := f.Container("host", "exit 0")
		config.Annotations = annotate("host")
		return config
	}()})
	checkRefusal(t, err, codes.InvalidArgument, []string{"run.berth.cgroupns", "privileged"})

	privileged := f.privilegedPod()
	id := f.running(privileged)
	want(t, "privileged", f.ExecOut(id, "readlink /proc/1/ns/cgroup"), host)
	want(t, "an exec in it", f.ExecOut(id, look), host)
	if onV2() { // only the root of the hierarchy lacks this file
		want(t, "what it sees", f.ExecOut(id, "test -e /sys/fs/cgroup/cgroup.events && echo its own || echo all; test -w /sys/fs/cgroup && echo writable"), "all\nwritable")
	}
	want(t, "how the host's cgroups are mounted", cgroupMounts(t), before)
	own("one that asks for its own", f.says(t, look, func(c containerConfig) {
		privileged(c)
		c.Annotations = annotate("private")
	}))
	f.pod(func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.Privileged = true
		c.Annotations = annotate("private")
	})
	own("one whose pod asks", f.says(t, look, privileged))
	want(t, "one that asks for the host's, unlike its pod", f.says(t, look, func(c containerConfig) {
		privileged(c)
		c.Annotations = annotate("host")
	}), host)
	config := f.Sandbox("unknown")
	config.Annotations = annotate("pod")
	_, err = f.Runtime.RunPodSandbox(f.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
	checkRefusal(t, err, codes.InvalidArgument, []string{"run.berth.cgroupns", "pod"})
}

// cgroupMounts are the mounts of cgroups on the host, with their options.
func cgroupMounts(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var mounts strings.Builder
	for line := range strings.Lines(string(data)) {
		if _, what, ok := strings.Cut(line, " - cgroup"); ok {
			mounts.WriteString(what)
		}
	}
	return mounts.String()
}

func (f *fields) testSeccomp(t *testing.T) {
	f.NeedsOfHandler(t, harness.SeccompFilters)
	profile := func(kind runtimeapi.SecurityProfile_ProfileType, ref string) func(containerConfig) {
		return func(c containerConfig) {
			containerSecurity(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: ref}
		}
	}
	old := func(path string) func(containerConfig) {
		return func(c containerConfig) {
			containerSecurity(c).Seccomp, containerSecurity(c).SeccompProfilePath = nil, path //nolint:staticcheck // deprecated, still sent
		}
	}
	const seccomp = "grep Seccomp: /proc/self/status"
	want(t, "RuntimeDefault", f.says(t, seccomp, profile(runtimeapi.SecurityProfile_RuntimeDefault, "")), "Seccomp:\t2")
	want(t, "Unconfined", f.says(t, seccomp, profile(runtimeapi.SecurityProfile_Unconfined, "")), "Seccomp:\t0")
	want(t, "the old field's runtime/default", f.says(t, seccomp, old("runtime/default")), "Seccomp:\t2")
	want(t, "neither field", f.says(t, seccomp, old("")), "Seccomp:\t0")
	file := filepath.Join(f.Dir, "no-chmod.json")
	if err := os.WriteFile(file, []byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["chmod","fchmod","fchmodat","fchmodat2"],"action":"SCMP_ACT_ERRNO"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const chmod = "chmod 700 /tmp 2>/dev/null && echo done || echo refused"
	want(t, "Localhost", f.says(t, chmod, profile(runtimeapi.SecurityProfile_Localhost, file)), "refused")
	want(t, "the old field's localhost", f.says(t, chmod, old("localhost/"+file)), "refused")
	// CRI: privileged means that no filter is applied. The log reports that the request named one.
	privileged := f.privilegedPod()
	want(t, "Localhost of a privileged container", f.says(t, chmod, func(c containerConfig) {
		privileged(c)
		profile(runtimeapi.SecurityProfile_Localhost, file)(c)
	}), "done")
	if log := f.LogTail(); !strings.Contains(log, "ignoring linux.security_context.seccomp") || !strings.Contains(log, file) {
		t.Errorf("the log does not name the profile that is ignored:\n%s", log)
	}
}

// TestSeccompProfilesOfTheConfiguration: an operator's files replace RuntimeDefault and the profile
// of privileged containers, right after a reload.
func TestSeccompProfilesOfTheConfiguration(t *testing.T) {
	f := newFields(t, harness.Options{Config: "[log]\n"}, func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD // its init has the built-in one
	})
	denying := func(name, calls string) string {
		file := filepath.Join(f.Dir, name)
		profile := fmt.Sprintf(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":[%s],"action":"SCMP_ACT_ERRNO"}]}`, calls)
		if err := os.WriteFile(file, []byte(profile), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	noChmod, noLink := denying("no-chmod.json", `"chmod","fchmod","fchmodat","fchmodat2"`), denying("no-link.json", `"symlink","symlinkat"`)
	const try = "chmod 700 /tmp 2>/dev/null && echo chmod; ln -s a /tmp/b 2>/dev/null && echo link; grep Seccomp: /proc/self/status"
	byDefault := func(c containerConfig) {
		containerSecurity(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	}
	want(t, "built in", f.says(t, try, byDefault), "chmod link Seccomp:\t2")
	f.reload(t, fmt.Sprintf("[runtime]\nseccomp_profile = %q\nprivileged_seccomp_profile = %q\n", noChmod, noLink),
		"runtime.seccomp_profile", "runtime.privileged_seccomp_profile")
	want(t, "the operator's", f.says(t, try, byDefault), "link Seccomp:\t2")
	want(t, "a request for nothing", f.says(t, try, func(c containerConfig) { containerSecurity(c).Seccomp = nil }), "chmod link Seccomp:\t0")
	f.pod(func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	})
	want(t, "in a pod that asks for it", f.says(t, try, byDefault), "link Seccomp:\t2")
	if !engineRefuses(t, f.Berth, translate.PrivilegedFilter, func(p *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
		p.Linux.SecurityContext.Privileged, containerSecurity(c).Privileged = true, true
	}, "security_context.privileged") {
		want(t, "privileged", f.says(t, try, f.privilegedPod()), "chmod Seccomp:\t2")
	}
	if err := os.Remove(noChmod); err != nil {
		t.Fatal(err)
	}
	words := []string{"runtime.seccomp_profile of the configuration", noChmod, "does not exist"}
	_, err := f.Runtime.RunPodSandbox(f.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: f.Sandbox("absent")}) // it requests the default
	checkRefusal(t, err, codes.InvalidArgument, words)
	config := f.Container("absent", "exit 0")
	byDefault(config)
	_, err = f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
	checkRefusal(t, err, codes.InvalidArgument, words)
	f.reload(t, "[log]\n")
	want(t, "built in again", f.says(t, try, byDefault), "chmod link Seccomp:\t2")
}

// testAppArmor: the kernel enforces a profile if it has AppArmor. Otherwise berth refuses it by
// name. Unconfined is always available.
func (f *fields) testAppArmor(t *testing.T) {
	f.running(func(c containerConfig) {
		containerSecurity(c).Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	})
	byDefault := func(c containerConfig) {
		containerSecurity(c).Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	}
	byOldField := func(c containerConfig) {
		containerSecurity(c).ApparmorProfile = "runtime/default" //nolint:staticcheck // deprecated, still sent
	}
	refused := func(words ...string) {
		for _, change := range []func(containerConfig){byDefault, byOldField} {
			config := f.Container("apparmor", "exit 0")
			change(config)
			_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
			checkRefusal(t, err, codes.Unimplemented, append(words, "apparmor"))
		}
	}
	_, noParser := exec.LookPath("apparmor_parser")
	switch {
	case apparmorCode() == codes.Unimplemented:
		refused("not supported on this host")
	case noParser != nil:
		refused("cannot be loaded", "apparmor_parser")
	default:
		for _, change := range []func(containerConfig){byDefault, byOldField} {
			if got := f.says(t, "cat /proc/self/attr/current", change); !strings.HasPrefix(got, "berth-") || !strings.HasSuffix(got, "(enforce)") {
				t.Errorf("runs under %q", got)
			}
		}
	}
}
