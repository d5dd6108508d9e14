package docker

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// TestCheckDriver: the error names berth's key, both drivers and both ways out, and has dockershim's words,
// which people search for.
func TestCheckDriver(t *testing.T) {
	for _, configured := range []string{"", "cgroupfs"} {
		if err := checkDriver(configured, "cgroupfs"); err != nil {
			t.Errorf("%q: %v", configured, err)
		}
	}
	err := checkDriver("systemd", "cgroupfs")
	if !errors.Is(err, errs.State) {
		t.Fatalf("%v, want State", err)
	}
	for _, want := range []string{
		`berth's runtime.cgroup_driver is "systemd", and the Docker engine uses "cgroupfs"`,
		`misconfiguration: kubelet cgroup driver: "systemd" is different from docker cgroup driver: "cgroupfs"`,
		"remove runtime.cgroup_driver", "native.cgroupdriver=systemd", "daemon.json",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nhas no %q", err, want)
		}
	}
}

// TestHandlerIsRefused: the Docker engine has no handlers, and berth says that, and not that one is missing.
func TestHandlerIsRefused(t *testing.T) {
	e := &Engine{}
	_, err := e.CreateSandbox(t.Context(), &engine.SandboxSpec{ID: "s", Handler: "kata"})
	if !errors.Is(err, errs.Unsupported) || !strings.HasPrefix(err.Error(), "runtime_handler: the Docker engine has no runtime handlers") ||
		!strings.Contains(err.Error(), `"kata"`) {
		t.Errorf("%v", err)
	}
}
