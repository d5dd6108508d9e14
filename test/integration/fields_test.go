//go:build integration

package integration

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fields is one berth with one sandbox. Each case tests one field of a container's configuration.
type fields struct {
	*harness.Berth
	config  *runtimeapi.PodSandboxConfig
	sandbox string
	names   int
}

func newFields(t *testing.T, opts harness.Options, change func(*runtimeapi.PodSandboxConfig)) *fields {
	t.Helper()
	f := &fields{Berth: harness.Start(t, opts)}
	f.pod(change)
	return f
}

// try runs one case, with the name of what it tests.
func (f *fields) try(t *testing.T, name string, do func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		outer := f.T
		f.T = t
		defer func() { f.T = outer }()
		do(t)
	})
}

// pod makes the next containers belong to a new sandbox.
func (f *fields) pod(change func(*runtimeapi.PodSandboxConfig)) {
	f.T.Helper()
	f.names++
	f.config = f.Sandbox("fields-" + strconv.Itoa(f.names))
	if change != nil {
		change(f.config)
	}
	f.sandbox = f.RunSandbox(f.config)
}

// create makes a container that runs a shell script.
func (f *fields) create(script string, change func(containerConfig)) string {
	f.T.Helper()
	f.names++
	config := f.Container("c"+strconv.Itoa(f.names), script)
	if change != nil {
		change(config)
	}
	return f.Create(f.sandbox, config, f.config)
}

// running creates a container that waits for execs.
func (f *fields) running(change func(containerConfig)) string {
	f.T.Helper()
	id := f.create("exec sleep 100000", change)
	f.StartContainer(id)
	return id
}

// says runs a script in a new container, requires code 0, and returns its output, with lines joined
// by spaces.
func (f *fields) says(t *testing.T, script string, change func(containerConfig)) string {
	t.Helper()
	id := f.create(script, change)
	f.StartContainer(id)
	status := f.AwaitExit(id)
	lines, err := harness.LogLines(status.LogPath)
	if err != nil || status.ExitCode != 0 {
		t.Fatalf("code %d, reason %s, output %q, %v", status.ExitCode, status.Reason, lines, err)
	}
	return strings.Join(lines, " ")
}

// pid returns the host's pid of a container's init.
func (f *fields) pid(t *testing.T, container string) string {
	t.Helper()
	answer, err := f.Runtime.ContainerStatus(f.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: container, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		Pid int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(answer.Info["info"]), &info); err != nil || info.Pid == 0 {
		t.Fatalf("verbose status %v, %v", answer.Info, err)
	}
	return strconv.Itoa(info.Pid)
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// onV2 reports whether the host has cgroup v2 alone.
func onV2() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// limit reads a limit inside of a container, by its file of either cgroup version.
func (f *fields) limit(container, v1, v2 string) string {
	f.T.Helper()
	file := v1
	if onV2() {
		file = v2
	}
	return f.ExecOut(container, "cat /sys/fs/cgroup/"+file)
}
