//go:build integration

package docker_test

import (
	"errors"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker"
	"github.com/berthrun/berth/internal/errs"
)

// TestAnEngineThatIsReplaced: what a request may ask for follows an engine that is upgraded while
// berth runs. One with another cgroup driver runs no pods. The calls are counted.
func TestAnEngineThatIsReplaced(t *testing.T) {
	fake := fakeengine.Start(t, fakeengine.Script{Version: "20.10.24"})
	client, err := api.New(api.Options{Endpoint: fake.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	e, err := docker.New(t.Context(), docker.Config{
		Instance: "testreplaced", StateDir: t.TempDir(), NetNSDir: "/run/netns", Client: client,
	}, docker.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "a"},
		Mounts:   []*runtimeapi.Mount{{ContainerPath: "/a", HostPath: "/tmp", Readonly: true, RecursiveReadOnly: true}},
	}
	sandbox := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "a", Namespace: "b", Uid: "c"}}
	if err := e.CheckContainer(config, sandbox); !errors.Is(err, errs.Unsupported) {
		t.Errorf("a recursive read-only mount before the upgrade: %v", err)
	}

	fake.Replace(fakeengine.Script{Version: "29.0.0", APIVersion: "1.52", MinAPIVersion: "1.44"})
	if _, err := e.Exits(t.Context()); err != nil { // its former channel was closed
		t.Fatal(err)
	}
	if err := e.CheckContainer(config, sandbox); err != nil {
		t.Errorf("a recursive read-only mount after the upgrade: %v", err)
	}
	if info, err := e.Info(t.Context()); err != nil || info.Version != "29.0.0" {
		t.Errorf("Info = %+v, %v", info, err)
	}

	fake.Replace(fakeengine.Script{Version: "29.0.1", APIVersion: "1.52", CgroupDriver: "systemd"})
	var notReady *engine.NotReadyError
	if _, err := e.Info(t.Context()); !errors.As(err, &notReady) || notReady.Reason != "DockerDaemonNotReady" || !errors.Is(err, errs.State) {
		t.Errorf("Info over another cgroup driver: %v", err)
	}
	if count := e.Calls()["info"]; count.Calls < 4 || count.Errors > 1 || count.Seconds <= 0 {
		t.Errorf("Calls of info: %+v", count)
	}
}
