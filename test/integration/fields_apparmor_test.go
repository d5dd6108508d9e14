//go:build integration

package integration

import (
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// refusing is a profile that forbids one operation that every shell can try.
const refusing = `profile berth-test-refusing flags=(attach_disconnected,mediate_deleted) {
  file,
  capability,
  network,
  signal,
  ptrace,
  umount,
  deny /forbidden w,
}
`

// TestFieldsOfAppArmor: the profile of a container, as /proc of its own process shows it, and what
// the container may do.
func TestFieldsOfAppArmor(t *testing.T) {
	require.AppArmor(t)
	f := newFields(t, harness.Options{Config: "[log]\n"}, nil)
	const current = "cat /proc/self/attr/current; "
	under := func(kind runtimeapi.SecurityProfile_ProfileType, name string) func(containerConfig) {
		return func(c containerConfig) {
			containerSecurity(c).Apparmor = &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: name}
		}
	}
	f.try(t, "apparmor unset", func(t *testing.T) {
		if got := f.says(t, current, nil); !strings.HasPrefix(got, "berth-") || !strings.HasSuffix(got, " (enforce)") {
			t.Errorf("a container that asks for nothing runs under %q, want berth's own profile", got)
		}
	})
	f.try(t, "apparmor RuntimeDefault", func(t *testing.T) {
		id := f.running(under(runtimeapi.SecurityProfile_RuntimeDefault, ""))
		for _, script := range []string{"cat /proc/1/attr/current", "cat /proc/self/attr/current"} {
			out := f.ExecOut(id, script)
			if !strings.HasPrefix(out, "berth-") || !strings.Contains(out, "(enforce)") {
				t.Errorf("%s: %q, want berth's own profile", script, out)
			}
		}
		// This rule of the default profile forbids something that no capability or masked path
		// forbids before.
		want(t, "mount", f.says(t, "mount -t tmpfs none /mnt 2>/dev/null && echo mounted || echo refused", func(c containerConfig) {
			under(runtimeapi.SecurityProfile_RuntimeDefault, "")(c)
			containerSecurity(c).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
			containerSecurity(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
		}), "refused")
	})
	f.try(t, "apparmor Unconfined", func(t *testing.T) {
		want(t, "profile", f.says(t, current, under(runtimeapi.SecurityProfile_Unconfined, "")), "unconfined")
	})
	f.try(t, "apparmor Localhost", func(t *testing.T) {
		loadRefusing(t)
		got := f.says(t, current+"for f in /allowed /forbidden; do echo x 2>/dev/null >$f && echo written || echo refused; done",
			under(runtimeapi.SecurityProfile_Localhost, "berth-test-refusing"))
		want(t, "profile and what it does", got, "berth-test-refusing (enforce) written refused")
	})
	f.try(t, "apparmor RuntimeDefault by the configuration", func(t *testing.T) {
		const name = "berth-test-refusing"
		f.reload(t, "[runtime]\napparmor_profile = \""+name+"\"\n", "runtime.apparmor_profile")
		t.Cleanup(func() { f.reload(t, "[log]\n") })
		byDefault := under(runtimeapi.SecurityProfile_RuntimeDefault, "")
		config := f.Container("not-loaded", "exit 0")
		byDefault(config)
		_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
		checkRefusal(t, err, codes.InvalidArgument, []string{"runtime.apparmor_profile", name, "not loaded"})
		loadRefusing(t)
		want(t, "RuntimeDefault", f.says(t, current, byDefault), name+" (enforce)")
		want(t, "unset", f.says(t, current, nil), name+" (enforce)")
		want(t, "Unconfined", f.says(t, current, under(runtimeapi.SecurityProfile_Unconfined, "")), "unconfined")
		want(t, "privileged", f.says(t, current, f.privilegedPod()), "unconfined")
		f.pod(func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		})
		init := f.running(func(c containerConfig) {
			containerSecurity(c).NamespaceOptions = &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD}
		})
		if got := f.ExecOut(init, "cat /proc/self/attr/current"); !strings.HasPrefix(got, name) {
			t.Errorf("beside a pod's init: %q", got)
		}
	})
	f.try(t, "apparmor Localhost that is not loaded", func(t *testing.T) {
		config := f.Container("absent", "exit 0")
		under(runtimeapi.SecurityProfile_Localhost, "berth-test-absent")(config)
		_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
		checkRefusal(t, err, codes.InvalidArgument, []string{"apparmor", "berth-test-absent", "not loaded"})
	})
}

// loadRefusing loads the profile refusing until the test ends.
func loadRefusing(t *testing.T) {
	t.Helper()
	parse := func(flag string) {
		cmd := exec.Command("apparmor_parser", flag, "-K", "-W")
		cmd.Stdin = strings.NewReader(refusing)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("apparmor_parser %s: %v: %s", flag, err, out)
		}
	}
	parse("-r")
	t.Cleanup(func() { parse("-R") })
}
