package allow

import (
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestExecOfAnOrdinaryProcess(t *testing.T) {
	umask := uint32(0o77)
	p := &specs.Process{
		Args: []string{"true"}, Env: []string{"A=1"}, Cwd: "/", Terminal: true, ConsoleSize: &specs.Box{Height: 1},
		User: specs.User{UID: 1, GID: 2, Umask: &umask, AdditionalGids: []uint32{3}}, NoNewPrivileges: true,
		Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_KILL"}}, ApparmorProfile: "a", SelinuxLabel: "b",
		Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE"}},
	}
	if ok, reason := FastExec(p); !ok {
		t.Error(reason)
	}
	if len(p.Args) != 1 {
		t.Error("it changed the process")
	}
}

// TestExecNamesWhatItDoesNotHandle sets each field that FastExec does not name.
func TestExecNamesWhatItDoesNotHandle(t *testing.T) {
	for field, p := range map[string]*specs.Process{
		"scheduler":       {Scheduler: &specs.Scheduler{}},
		"ioPriority":      {IOPriority: &specs.LinuxIOPriority{}},
		"execCPUAffinity": {ExecCPUAffinity: &specs.CPUAffinity{}},
		"username":        {User: specs.User{Username: "root"}},
		"commandLine":     {CommandLine: "true"},
	} {
		if ok, reason := FastExec(p); ok || !strings.Contains(reason, field) {
			t.Errorf("%s: %v, %q", field, ok, reason)
		}
	}
}
