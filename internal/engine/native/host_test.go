package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native/handler"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/ocispec/request"
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
		// That it has not answered yet is no fault.
		if info := e.handlerInfo(); len(info) != 2 || !info[1].Pending || info[1].Fault != "" {
			t.Errorf("info while the program hangs: %+v", info)
		}
		if warnings := e.handlerWarnings(rules); len(warnings) != 0 {
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

// limited is a store that can limit what containers write, but for err.
type limited struct {
	image.Rootfs
	err error
}

func (l limited) CanLimit() error { return l.err }

// The limit of what containers write is that of the handler, or else the engine's. Where it cannot hold, the pods with a limit
// fail, and no others.
func TestWritableLimitOfHandlers(t *testing.T) {
	own, none := int64(1<<20), int64(0)
	handlers := map[string]*handler.Handler{"berth's": nil, "as berth's": {Name: "as"}, "own": {Name: "own", WritableLimit: &own}, "none": {Name: "none", WritableLimit: &none}}
	for name, want := range map[string]struct {
		bytes int64
		key   string
	}{
		"berth's": {1 << 30, "defaults.writable_limit"}, "as berth's": {1 << 30, "defaults.writable_limit"},
		"own": {own, "handlers.own.writable_limit"}, "none": {0, ""},
	} {
		e := &Engine{}
		e.inForce.Store(&Rules{WritableLimit: 1 << 30})
		h := handlers[name]
		if bytes, key := e.writableLimit(h); bytes != want.bytes || want.key != "" && key != want.key {
			t.Errorf("%s: %d by %s", name, bytes, key)
		}
		for _, store := range []image.Rootfs{limited{}, limited{err: fmt.Errorf("no quotas: %w", errs.Unsupported)}, struct{ image.Rootfs }{}} {
			e.cfg.Rootfs = store
			err := e.checkLimit(h)
			if fails := want.bytes > 0 && store != (limited{}); (err != nil) != fails {
				t.Errorf("%s over %T: %v", name, store, err)
			} else if fails && (!errors.Is(err, errs.Unsupported) || !strings.HasPrefix(err.Error(), want.key+" of the configuration is ")) {
				t.Errorf("%s over %T: %v", name, store, err)
			}
		}
	}
}

// TestFullDiskNamesTheLimit: the error of a container that berth could not fill says which limit it has, and no other error does.
func TestFullDiskNamesTheLimit(t *testing.T) {
	e := &Engine{}
	e.inForce.Store(&Rules{WritableLimit: 1 << 20})
	kept := map[string]string{request.AnnotationStorage: "/srv/c"}
	none := int64(0)
	full := &engine.VolumeError{Err: fmt.Errorf("cannot copy: %w", errs.OfDisk(syscall.EDQUOT))}
	for _, test := range []struct {
		what   string
		err    error
		h      *handler.Handler
		config *runtimeapi.ContainerConfig
		named  bool
	}{
		{"a full disk", full, nil, nil, true},
		{"a handler without a limit", full, &handler.Handler{Name: "x", WritableLimit: &none}, nil, false},
		{"a storage", full, nil, &runtimeapi.ContainerConfig{Annotations: kept}, false},
		{"another limit", fmt.Errorf("cannot fork: %w", errs.Exhausted), nil, nil, false},
		{"no error", nil, nil, nil, false},
	} {
		err := e.withLimit(&containerSpec{
			ContainerSpec: &engine.ContainerSpec{Config: test.config}, Sandbox: &sandbox{pinned: pinned{Handler: test.h}},
		}, test.err)
		if !errors.Is(err, test.err) || strings.HasSuffix(errs.Message(err), "; defaults.writable_limit is 1048576 bytes") != test.named {
			t.Errorf("%s: %v", test.what, err)
		}
	}
}
