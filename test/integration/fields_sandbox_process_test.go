//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/test/harness"
)

// refused runs a sandbox that must be refused.
func (f *fields) refused(t *testing.T, code codes.Code, change func(*runtimeapi.PodSandboxConfig), words ...string) {
	t.Helper()
	config := f.Sandbox("refused")
	change(config)
	_, err := f.Runtime.RunPodSandbox(f.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
	checkRefusal(t, err, code, words)
}

// sharing runs a sandbox whose containers share a PID namespace, so that it has a process. It
// returns that process's directory in /proc.
func (f *fields) sharing(t *testing.T, change func(*runtimeapi.LinuxSandboxSecurityContext)) (proc string) {
	t.Helper()
	f.pod(func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		change(c.Linux.SecurityContext)
	})
	answer, err := f.Runtime.PodSandboxStatus(f.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: f.sandbox, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(answer.Info["info"]), &info); err != nil || info.Pid == 0 {
		t.Fatalf("verbose status %v, %v", answer.Info, err)
	}
	return filepath.Join("/proc", strconv.Itoa(info.Pid))
}

// statusLines are the lines of a process's status, by name.
func statusLines(t *testing.T, proc string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]string{}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		lines[name] = strings.Join(strings.Fields(value), " ")
	}
	return lines
}

// testSandboxProcess: the sandbox's own process has less than any request can give. berth refuses
// an invalid user or label all the same.
func (f *fields) testSandboxProcess(t *testing.T) {
	f.NeedsOfHandler(t, harness.ContainerProcesses)
	proc := f.sharing(t, func(s *runtimeapi.LinuxSandboxSecurityContext) {
		s.RunAsUser, s.RunAsGroup, s.SupplementalGroups = user(0), user(0), []int64{0, 5000}
		s.SupplementalGroupsPolicy = runtimeapi.SupplementalGroupsPolicy_Strict
		s.ReadonlyRootfs = false
	})
	status := statusLines(t, proc)
	// Real, effective, saved and of the file system. The user has no group but its own.
	ids := strings.TrimSpace(strings.Repeat(f.PodInitUser()+" ", 4))
	status["Groups"] = strings.TrimPrefix(status["Groups"], f.PodInitUser())
	for name, value := range map[string]string{
		"Uid": ids, "Gid": ids, "Groups": "", "NoNewPrivs": "1",
		"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapBnd": "0000000000000000",
	} {
		want(t, name, status[name], value)
	}
	mounts, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
	if err != nil {
		t.Fatal(err)
	}
	root := ""
	for line := range strings.Lines(string(mounts)) {
		if words := strings.Fields(line); words[4] == "/" {
			root, _, _ = strings.Cut(words[5], ",")
		}
	}
	want(t, "the root's mount", root, "ro")
	f.refused(t, codes.InvalidArgument, func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.RunAsGroup = user(1) }, "run_as_group")
	f.refused(t, codes.InvalidArgument, func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.RunAsUser = user(-1) }, "run_as_user")
	f.refused(t, codes.InvalidArgument, func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.SupplementalGroups = []int64{1 << 40} }, "supplemental_groups[0]")
	f.refused(t, codes.InvalidArgument, func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.SupplementalGroupsPolicy = 9 }, "supplemental_groups_policy")
	label := &runtimeapi.SELinuxOption{Level: "s0:c3,c4"}
	if !hasSELinux() {
		f.refused(t, codes.Unimplemented, func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.SelinuxOptions = label },
			"selinux_options", "SELinux is not enabled")
		return
	}
	proc = f.sharing(t, func(s *runtimeapi.LinuxSandboxSecurityContext) { s.SelinuxOptions = label })
	data, err := os.ReadFile(filepath.Join(proc, "attr", "current"))
	if err != nil || !strings.HasSuffix(strings.TrimRight(string(data), "\x00\n"), label.Level) {
		t.Errorf("the label is %q, %v", data, err)
	}
}

// testSandboxProfiles: privileged allows privileged containers. The sandbox's own process has the
// default filter, whatever the request says. berth refuses what it cannot enforce here.
func (f *fields) testSandboxProfiles(t *testing.T) {
	for _, change := range []func(*runtimeapi.LinuxSandboxSecurityContext){
		func(*runtimeapi.LinuxSandboxSecurityContext) {},
		func(s *runtimeapi.LinuxSandboxSecurityContext) {
			s.Privileged = true
			s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
			s.Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
		},
		func(s *runtimeapi.LinuxSandboxSecurityContext) {
			s.Seccomp, s.SeccompProfilePath = nil, "runtime/default" //nolint:staticcheck // deprecated, still sent
		},
	} {
		const filtered = "2"
		want(t, "Seccomp", statusLines(t, f.sharing(t, change))["Seccomp"], filtered)
		// The init works behind the filter: it reaps orphans of a container.
		f.says(t, "(sh -c 'sleep 0.1 & exit 0') & wait; until ! ps -o stat | grep -q Z; do sleep 0.05; done", func(c containerConfig) {
			containerSecurity(c).NamespaceOptions = f.config.Linux.SecurityContext.NamespaceOptions
		})
	}
	f.pod(nil)
	config := f.Container("privileged", "exit 0")
	containerSecurity(config).Privileged = true
	_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
	checkRefusal(t, err, codes.InvalidArgument, []string{"privileged"})
	// A privileged container has the capabilities of the bounding set of this process.
	bounding, err := strconv.ParseUint(statusLines(t, "/proc/self")["CapBnd"], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "capabilities", f.says(t, "grep CapEff /proc/self/status", f.privilegedPod()), fmt.Sprintf("CapEff:\t%016x", bounding&f.KnownCapabilities()))

	f.refused(t, codes.InvalidArgument, func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "relative"}
	}, "seccomp.localhost_ref", "relative")
	f.refused(t, codes.InvalidArgument, func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.Seccomp, c.Linux.SecurityContext.SeccompProfilePath = nil, "no/such" //nolint:staticcheck // deprecated, still sent
	}, "seccomp_profile_path", "no/such")
	profile := filepath.Join(f.Dir, "profile.json")
	for _, problem := range []string{"does not exist", "cannot use the profile"} {
		for _, privileged := range []bool{false, true} {
			f.refused(t, codes.InvalidArgument, func(c *runtimeapi.PodSandboxConfig) {
				c.Linux.SecurityContext.Privileged = privileged
				c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: profile}
			}, "linux.security_context.seccomp", profile, problem)
		}
		if err := os.WriteFile(profile, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Without AppArmor this host has no such profile. With AppArmor it is not loaded.
	f.refused(t, apparmorCode(), func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "no-such-profile"}
	}, "apparmor")
}
