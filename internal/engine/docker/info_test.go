package docker

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/apparmor"
	"github.com/berthrun/berth/internal/errs"
)

// TestUnusedKeysAreInInfo: Status, and with it `berth info`, names the keys of the configuration that
// do nothing, once.
func TestUnusedKeysAreInInfo(t *testing.T) {
	fake := fakeengine.Start(t, fakeengine.Script{})
	client, err := api.New(api.Options{Endpoint: fake.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	e := &Engine{client: client, apparmor: apparmor.Off(), driver: "cgroupfs", scores: scoresOf(client, slog.New(slog.DiscardHandler))}
	unused := []string{"image.max_layer_gib", "runtime.selinux"}
	want := UnusedWarning(unused)
	for _, rules := range []Rules{{}, {UnusedKeys: unused}, {UnusedKeys: unused}, {}} {
		e.SetRules(rules)
		info, err := e.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		for _, warning := range info.Warnings {
			if warning == want {
				count++
			}
		}
		if (count == 1) != (len(rules.UnusedKeys) > 0) || count > 1 {
			t.Errorf("with unused keys %v the warnings are %q", rules.UnusedKeys, slices.Clone(info.Warnings))
		}
	}
}

// TestPodmanIsNotReady: no pod starts over podman's socket, and Status says why.
func TestPodmanIsNotReady(t *testing.T) {
	fake := fakeengine.Start(t, fakeengine.Script{Version: "4.3.1", Components: []string{"Podman Engine", "Conmon"}})
	client, err := api.New(api.Options{Endpoint: fake.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	e := &Engine{client: client, apparmor: apparmor.Off(), driver: "cgroupfs", scores: scoresOf(client, slog.New(slog.DiscardHandler))}
	e.SetRules(Rules{})
	_, err = e.Info(t.Context())
	var notReady *engine.NotReadyError
	if !errors.As(err, &notReady) || !strings.Contains(err.Error(), "podman") {
		t.Errorf("Info: %v", err)
	}
	if _, err := e.CreateSandbox(t.Context(), &engine.SandboxSpec{ID: "s"}); !errors.Is(err, errs.Unsupported) {
		t.Errorf("CreateSandbox: %v", err)
	}
}
