//go:build integration

package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// byID is a call that takes the id of a sandbox or a container.
type byID struct {
	name string
	do   func(x *trial, id string) error
	// gone is true for calls that succeed if the object does not exist.
	gone bool
}

func sandboxCalls() []byID {
	return []byID{
		{"StopPodSandbox", func(x *trial, id string) error {
			_, err := x.Runtime.StopPodSandbox(x.Ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
			return err
		}, true},
		{"RemovePodSandbox", func(x *trial, id string) error {
			_, err := x.Runtime.RemovePodSandbox(x.Ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
			return err
		}, true},
		{"PodSandboxStatus", func(x *trial, id string) error {
			_, err := x.Runtime.PodSandboxStatus(x.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
			return err
		}, false},
		{"PodSandboxStats", func(x *trial, id string) error {
			_, err := x.Runtime.PodSandboxStats(x.Ctx(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: id})
			return err
		}, false},
		{"UpdatePodSandboxResources", func(x *trial, id string) error {
			_, err := x.Runtime.UpdatePodSandboxResources(x.Ctx(), &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: id})
			return err
		}, false},
		{"PortForward", func(x *trial, id string) error {
			_, err := x.Runtime.PortForward(x.Ctx(), &runtimeapi.PortForwardRequest{PodSandboxId: id, Port: []int32{80}})
			return err
		}, false},
		{"CreateContainer", func(x *trial, id string) error {
			_, err := x.Runtime.CreateContainer(x.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: id, Config: x.Container("bad", "exit 0"), SandboxConfig: x.pod.Config})
			return err
		}, false},
	}
}

func containerCalls() []byID {
	return []byID{
		{"StartContainer", func(x *trial, id string) error {
			_, err := x.Runtime.StartContainer(x.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: id})
			return err
		}, false},
		{"StopContainer", func(x *trial, id string) error {
			_, err := x.Runtime.StopContainer(x.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: id})
			return err
		}, true},
		{"RemoveContainer", func(x *trial, id string) error {
			_, err := x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
			return err
		}, true},
		{"ContainerStatus", func(x *trial, id string) error {
			_, err := x.Runtime.ContainerStatus(x.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
			return err
		}, false},
		{"ContainerStats", func(x *trial, id string) error {
			_, err := x.Runtime.ContainerStats(x.Ctx(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
			return err
		}, false},
		{"ExecSync", func(x *trial, id string) error {
			_, err := x.Runtime.ExecSync(x.Ctx(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
			return err
		}, false},
		{"Exec", func(x *trial, id string) error {
			_, err := x.Runtime.Exec(x.Ctx(), &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true})
			return err
		}, false},
		{"Attach", func(x *trial, id string) error {
			_, err := x.Runtime.Attach(x.Ctx(), &runtimeapi.AttachRequest{ContainerId: id, Stdout: true})
			return err
		}, false},
		{"UpdateContainerResources", func(x *trial, id string) error {
			_, err := x.Runtime.UpdateContainerResources(x.Ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 2}})
			return err
		}, false},
		{"ReopenContainerLog", func(x *trial, id string) error {
			_, err := x.Runtime.ReopenContainerLog(x.Ctx(), &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
			return err
		}, false},
	}
}

func TestBadIDsOfEveryCall(t *testing.T) {
	x := newTrial(t, harness.Options{})
	var attempts []attempt
	for _, call := range append(sandboxCalls(), containerCalls()...) {
		attempts = append(attempts, attempt{call.name + " of nothing", func() error { return call.do(x, "") }, codes.InvalidArgument, []string{"should not be empty"}})
		for name, id := range map[string]string{
			"unknown": strings.Repeat("0", 64), "a path": "../../etc", "an absolute path": "/etc/passwd", "dots": "..", "NUL": "a\x00b",
			"lines": "a\nb", "huge": huge, "upper case": strings.ToUpper(x.pod.Sandbox), "longer": x.pod.Sandbox + "0", "a pattern": "*", "a file": x.pod.Sandbox + ".json",
		} {
			code, words := codes.NotFound, []string{"not found"}
			if call.gone {
				code, words = codes.OK, nil
			}
			attempts = append(attempts, attempt{call.name + " of " + name, func() error { return call.do(x, id) }, code, words})
		}
	}
	for _, a := range attempts {
		checkNamed(t, a)
	}
	x.nothingLeft(t)
}

// checkNamed is try without the search for leftovers, for many attempts.
func checkNamed(t *testing.T, a attempt) {
	t.Helper()
	t.Run(a.name, func(t *testing.T) {
		t.Helper()
		checkRefusal(t, a.do(), a.code, a.words)
	})
}

func TestAmbiguousPrefixesAreRefusedByEveryCall(t *testing.T) {
	x := newTrial(t, harness.Options{})
	// Two of 17 ids begin with the same digit.
	sandboxes, containers := []string{x.pod.Sandbox}, []string{x.pod.Container}
	for i := range 16 {
		config := x.Sandbox(fmt.Sprintf("p%d", i))
		config.Hostname, security(config).NamespaceOptions.Network = "", runtimeapi.NamespaceMode_NODE
		id := x.RunSandbox(config)
		container := x.Container("c", "exit 0")
		containerSecurity(container).NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
		sandboxes, containers = append(sandboxes, id), append(containers, x.Create(id, container, config))
	}
	x.ground = x.StillGround()
	for _, kind := range []struct {
		calls []byID
		ids   []string
	}{{sandboxCalls(), sandboxes}, {containerCalls(), containers}} {
		prefix := sharedPrefix(kind.ids)
		for _, call := range kind.calls {
			checkNamed(t, attempt{call.name, func() error { return call.do(x, prefix) }, codes.InvalidArgument, []string{"ambiguous", prefix}})
		}
	}
	x.nothingLeft(t)
	// An unambiguous prefix works like the id.
	if got := x.Status(shortest(containers, containers[3])).Id; got != containers[3] {
		t.Errorf("by its prefix: %s, want %s", got, containers[3])
	}
}

// sharedPrefix is the longest prefix that two of the ids share.
func sharedPrefix(ids []string) string {
	longest := ""
	for i, a := range ids {
		for _, b := range ids[:i] {
			n := 0
			for a[n] == b[n] {
				n++
			}
			if n > len(longest) {
				longest = a[:n]
			}
		}
	}
	return longest
}

// shortest is the shortest prefix that only id has.
func shortest(ids []string, id string) string {
	for n := 1; ; n++ {
		same := 0
		for _, other := range ids {
			if strings.HasPrefix(other, id[:n]) {
				same++
			}
		}
		if same == 1 {
			return id[:n]
		}
	}
}

func TestBadExecsAndStreams(t *testing.T) {
	x := newTrial(t, harness.Options{})
	const invalid = codes.InvalidArgument
	execSync := func(name string, code codes.Code, request *runtimeapi.ExecSyncRequest, words ...string) attempt {
		return attempt{"ExecSync " + name, func() error {
			if request.ContainerId == "" {
				request.ContainerId = x.pod.Container
			}
			_, err := x.Runtime.ExecSync(x.Ctx(), request)
			return err
		}, code, words}
	}
	exec := func(name string, request *runtimeapi.ExecRequest, words ...string) attempt {
		return attempt{"Exec " + name, func() error {
			request.ContainerId = x.pod.Container
			_, err := x.Runtime.Exec(x.Ctx(), request)
			return err
		}, invalid, words}
	}
	attach := func(name string, request *runtimeapi.AttachRequest, words ...string) attempt {
		return attempt{"Attach " + name, func() error {
			request.ContainerId = x.pod.Container
			_, err := x.Runtime.Attach(x.Ctx(), request)
			return err
		}, invalid, words}
	}
	created := x.Create(x.pod.Sandbox, x.Container("created", "exit 0"), x.pod.Config)
	exited := x.Create(x.pod.Sandbox, x.Container("exited", "exit 0"), x.pod.Config)
	x.StartContainer(exited)
	x.AwaitExit(exited)
	x.ground = x.StillGround()
	x.try(t, []attempt{
		execSync("of no command", invalid, &runtimeapi.ExecSyncRequest{}, "cmd"),
		execSync("of an empty command", invalid, &runtimeapi.ExecSyncRequest{Cmd: []string{""}}, "command"),
		execSync("with a negative time-out", invalid, &runtimeapi.ExecSyncRequest{Cmd: []string{"true"}, Timeout: -1}, "timeout"),
		execSync("of a command that is not there", invalid, &runtimeapi.ExecSyncRequest{Cmd: []string{"/no/such"}}, "/no/such"),
		execSync("of a command that is not in PATH", invalid, &runtimeapi.ExecSyncRequest{Cmd: []string{"no-such"}}, "no-such"),
		execSync("of a directory", invalid, &runtimeapi.ExecSyncRequest{Cmd: []string{"/etc"}}, "/etc"),
		execSync("of what is not executable", invalid, &runtimeapi.ExecSyncRequest{Cmd: []string{"/etc/passwd"}}, "/etc/passwd"),
		execSync("with NUL", invalid, &runtimeapi.ExecSyncRequest{Cmd: []string{"true", "a\x00b"}}, "NUL"),
		execSync("over its time", codes.DeadlineExceeded, &runtimeapi.ExecSyncRequest{Cmd: []string{"sleep", "617"}, Timeout: 1}, "timed out"),
		execSync("in a created container", codes.FailedPrecondition, &runtimeapi.ExecSyncRequest{ContainerId: created, Cmd: []string{"true"}}, "not running"),
		execSync("in an exited container", codes.FailedPrecondition, &runtimeapi.ExecSyncRequest{ContainerId: exited, Cmd: []string{"true"}}, "not running"),
		exec("of no command", &runtimeapi.ExecRequest{Stdout: true}, "cmd"),
		exec("of an empty command", &runtimeapi.ExecRequest{Cmd: []string{""}, Stdout: true}, "cmd[0]"),
		exec("with NUL", &runtimeapi.ExecRequest{Cmd: []string{"sh", "a\x00"}, Stdout: true}, "cmd[1]", "NUL"),
		exec("of no stream", &runtimeapi.ExecRequest{Cmd: []string{"sh"}}, "stdin, stdout"),
		exec("with tty and stderr", &runtimeapi.ExecRequest{Cmd: []string{"sh"}, Tty: true, Stderr: true}, "tty", "stderr"),
		attach("of no stream", &runtimeapi.AttachRequest{}, "stdin, stdout"),
		attach("with tty and stderr", &runtimeapi.AttachRequest{Tty: true, Stderr: true}, "tty", "stderr"),
		{"PortForward to a port that is none", func() error {
			_, err := x.Runtime.PortForward(x.Ctx(), &runtimeapi.PortForwardRequest{PodSandboxId: x.pod.Sandbox, Port: []int32{70000}})
			return err
		}, invalid, []string{"70000"}},
		{"ReopenContainerLog of an exited container", func() error {
			_, err := x.Runtime.ReopenContainerLog(x.Ctx(), &runtimeapi.ReopenContainerLogRequest{ContainerId: exited})
			return err
		}, codes.FailedPrecondition, []string{"not running"}},
		{"UpdateRuntimeConfig with no range", func() error {
			_, err := x.Runtime.UpdateRuntimeConfig(x.Ctx(), &runtimeapi.UpdateRuntimeConfigRequest{
				RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: "10.0.0.0/99"}},
			})
			return err
		}, invalid, []string{"10.0.0.0/99"}},
		{"UpdateRuntimeConfig with everything", func() error {
			_, err := x.Runtime.UpdateRuntimeConfig(x.Ctx(), &runtimeapi.UpdateRuntimeConfigRequest{
				RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: "0.0.0.0/0"}},
			})
			return err
		}, invalid, []string{"0.0.0.0/0"}},
	})
}
