package native

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native/handler"
	"github.com/berthrun/berth/internal/errs"
)

// Status and `berth info` do not wait for a program that hangs.
func TestInfoDoesNotWaitForPrograms(t *testing.T) {
	dir := t.TempDir()
	path, fifo := filepath.Join(dir, "program"), filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\nread line < "+fifo+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	e := &Engine{}
	rules := &Rules{Handlers: handler.Table{Handlers: map[string]handler.Handler{"x": {Name: "x", Kind: handler.OCI, Path: path}}}}
	e.inForce.Store(rules)
	for range 2 {
		if info := e.handlerInfo(); len(info) != 2 || !strings.Contains(info[1].Fault, `handler "x": the features of `+path+" are not known yet") {
			t.Errorf("info while the program hangs: %+v", info)
		}
		if warnings := e.handlerWarnings(rules); len(warnings) != 1 || !strings.Contains(warnings[0], "not known yet") {
			t.Errorf("warnings while the program hangs: %q", warnings)
		}
	}
	// It ends.
	f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// A pod with a user namespace needs a program that can map ids, and rro for the /sys of the host's network.
func TestHandlerForUserNamespaces(t *testing.T) {
	const all = `{"mountOptions":["rro"],"linux":{"namespaces":["user"],"mountExtensions":{"idmap":{"enabled":true}}}}`
	const noRRO = `{"mountOptions":["ro"],"linux":{"namespaces":["user"],"mountExtensions":{"idmap":{"enabled":true}}}}`
	const noIDs = `{"mountOptions":["rro"]}`
	const pod, node = runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_NODE
	for name, tc := range map[string]struct {
		features        string
		userns, network runtimeapi.NamespaceMode
		lack            string
	}{
		"all":        {all, pod, node, ""},
		"norro":      {noRRO, pod, pod, ""},
		"norro host": {noRRO, pod, node, "(rro)"},
		"noids":      {noIDs, pod, pod, "cannot map the ids of mounts"},
		"host":       {noIDs, node, node, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "program")
			if err := os.WriteFile(path, []byte("#!/bin/sh\necho '"+tc.features+"'\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			e := &Engine{}
			e.inForce.Store(&Rules{Handlers: handler.Table{Handlers: map[string]handler.Handler{"x": {Name: "x", Kind: handler.OCI, Path: path}}}})
			h, err := e.handlerOf(t.Context(), &engine.SandboxSpec{Handler: "x", Config: &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
				SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{
					Network: tc.network, UsernsOptions: &runtimeapi.UserNamespace{Mode: tc.userns},
				}},
			}}})
			if tc.lack == "" {
				if err != nil || h.Path != path {
					t.Errorf("%+v, %v", h, err)
				}
				return
			}
			if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), tc.lack) || !strings.Contains(err.Error(), `handler "x" (`+path+")") {
				t.Errorf("error %v, want one of %q", err, tc.lack)
			}
		})
	}
}
