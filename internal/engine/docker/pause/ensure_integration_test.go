//go:build integration

package pause

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/errs"
)

func TestEnsureWithRealEngine(t *testing.T) {
	c := connect(t, dockertest.Start(t, dockertest.Options{}).Endpoint)
	loads := func() uint64 { return c.Counts()["load images"].Calls }

	var wait sync.WaitGroup
	loader := NewLoader(c)
	for range 8 {
		wait.Go(func() {
			if _, err := loader.Ensure(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	id := ensure(t, c)
	if got := loads(); got != 1 {
		t.Errorf("the image was loaded %d times", got)
	}

	remove := client.ImageRemoveOptions{Force: true}
	if _, err := c.ImageRemove(t.Context(), Reference, remove); err != nil {
		t.Fatal(err)
	}
	if again := ensure(t, c); again != id || loads() != 2 {
		t.Errorf("after a removal the image is %s, not %s, and %d loads", again, id, loads())
	}

	foreign := &image{}
	for _, architecture := range []string{"amd64", "arm64"} {
		if architecture != runtime.GOARCH {
			foreign = must(build(architecture))(t)
		}
	}
	if err := load(t.Context(), c, foreign); err != nil {
		t.Fatal(err)
	}
	if other := must(find(t.Context(), c))(t); other == id {
		t.Fatalf("%s is not another image", other)
	}
	if again := ensure(t, c); again != id {
		t.Errorf("another image with the name was not replaced: %s", again)
	}
}

// TestPauseContainer runs the image with the longest name that a pod can have.
func TestPauseContainer(t *testing.T) {
	c := connect(t, dockertest.Start(t, dockertest.Options{}).Endpoint)
	long := strings.Repeat("x", 253)
	opts := client.ContainerCreateOptions{
		Config:     &container.Config{Image: ensure(t, c)},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
		Name: labels.SandboxName(&runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: long, Namespace: long, Uid: long},
		}),
	}
	id := must(c.ContainerCreate(t.Context(), opts))(t).ID
	must(c.ContainerStart(t.Context(), id, client.ContainerStartOptions{}))(t)

	found := must(c.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{}))(t).Container
	if parsed, err := labels.Parse(found.Name); err != nil || parsed.Pod != long {
		t.Errorf("%v in the name of the container", err)
	}
	if found.Config.Labels[labels.Image] != labels.ImagePause {
		t.Errorf("the labels are %v", found.Config.Labels)
	}

	_, err := c.ContainerCreate(t.Context(), opts)
	if owner, ok := labels.Conflict(err); !ok || owner != id || !errors.Is(err, errs.Exists) {
		t.Errorf("the owner of the name is %q, not %q: %v", owner, id, err)
	}
	opts.Name = labels.WithSuffix(opts.Name)
	must(c.ContainerCreate(t.Context(), opts))(t)

	must(c.ContainerKill(t.Context(), id, client.ContainerKillOptions{Signal: "SIGTERM"}))(t)
	eventually(t, "the container ends", func() bool {
		found = must(c.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{}))(t).Container
		return !found.State.Running
	})
	if found.State.ExitCode != 0 {
		t.Errorf("the container ended with %d", found.State.ExitCode)
	}
}

func connect(t *testing.T, endpoint string) *api.Client {
	t.Helper()
	c := must(api.New(api.Options{Endpoint: endpoint}))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func ensure(t *testing.T, c *api.Client) (id string) {
	t.Helper()
	return must(Ensure(t.Context(), c))(t)
}

// must returns a function that returns value, or fails the test with err.
func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
