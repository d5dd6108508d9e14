//go:build integration

package server_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
)

// gvisorShim is the program of gVisor's shim, which has the program runsc beside it.
const gvisorShim = "containerd-shim-runsc-v1"

// rootID is the id of the root container of gVisor, and of the pod that all containers of a test are in.
const rootID = "root"

// overGVisor has gVisor's shim make the containers.
func (h *host) overGVisor(program string) *host {
	config := filepath.Join(h.dir, "runsc.toml")
	// An overlay would have a file in the root file system, which these containers share.
	text := fmt.Sprintf("binary_name = %q\n[runsc_config]\nplatform = \"systrap\"\noverlay2 = \"none\"\n", filepath.Join(filepath.Dir(program), "runsc"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	h.overShim(program, "TypeUrl=io.containerd.runsc.v1.options", "ConfigPath="+config)
	h.handler.IsSandbox, h.gVisor = true, true
	return h
}

// inGVisor reports whether gVisor's shim makes the containers.
func (h *host) inGVisor() bool { return h.gVisor }

// makeRoot starts the root container, which all others need.
func (h *host) makeRoot() {
	h.t.Helper()
	h.run(rootID, "while :; do sleep 1000; done")
}

// intoSandbox puts a container into the pod of the root container.
func intoSandbox(id string, spec *specs.Spec) {
	kind := "container"
	if id == rootID {
		kind = "sandbox"
	}
	spec.Annotations = map[string]string{"io.kubernetes.cri.sandbox-id": rootID, "io.kubernetes.cri.container-type": kind}
	spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: "network"})
}

// The parts of a host that gVisor's sandbox does not have. skipInGVisor names them.
const (
	hostProcesses = "processes of containers on the host"
	loneCommands  = "a cgroup for each command in a container"
	ownLimits     = "limits of containers in their cgroups"
)

// skipInGVisor skips a test that is about a part which gVisor's sandbox does not have.
func (h *host) skipInGVisor(part string) {
	h.t.Helper()
	var why error
	if h.inGVisor() {
		why = errors.New(map[string]string{
			hostProcesses: "gVisor has one process on the host for all containers of a pod",
			loneCommands:  "gVisor ends a command at its time limit, and not what the command has started",
			ownLimits:     "gVisor does not apply the limits of containers: those of the pod's cgroup hold",
		}[part])
	}
	require.Engine(h.t, part, why)
}

// list returns the containers without the root container.
func (h *host) list() ([]supervisor.Container, error) {
	all, err := h.client.List(h.ctx())
	return slices.DeleteFunc(all, func(c supervisor.Container) bool { return c.ID == rootID }), err
}
