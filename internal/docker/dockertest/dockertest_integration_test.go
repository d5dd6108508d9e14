//go:build integration

package dockertest_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/moby/sys/mountinfo"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/dockertest"
)

func connect(t *testing.T, d *dockertest.Daemon) *api.Client {
	t.Helper()
	c, err := api.New(api.Options{Endpoint: d.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// runContainer starts a container that ignores SIGTERM and is privileged.
func runContainer(t *testing.T, c *api.Client, image *dockertest.Image) (id string) {
	t.Helper()
	made, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config:     &container.Config{Image: image.ID, Cmd: image.Programs.Stubborn},
		HostConfig: &container.HostConfig{Privileged: true, NetworkMode: "none", OomScoreAdj: -500},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	return made.ID
}

func pidOf(t *testing.T, c *api.Client, id string) int {
	t.Helper()
	got, err := c.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Container.State.Pid
}

func TestNothingIsLeft(t *testing.T) {
	var pid int
	var root string
	t.Run("engine", func(t *testing.T) {
		d := dockertest.Start(t, dockertest.Options{})
		root = filepath.Dir(d.Root)
		c := connect(t, d)
		if pid = pidOf(t, c, runContainer(t, c, dockertest.LoadImage(t, d))); pid <= 0 {
			t.Fatalf("the container has pid %d", pid)
		}
	})
	if _, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/exe"); pid > 0 && err == nil {
		t.Errorf("process %d of a container is left", pid)
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
	if mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root)); err != nil || len(mounts) > 0 {
		t.Errorf("mounts are left: %+v, %v", mounts, err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*/", "/sys/fs/cgroup/"} {
		if left, _ := filepath.Glob(pattern + filepath.Base(root)); len(left) > 0 {
			t.Errorf("cgroups are left: %v", left)
		}
	}
}

func TestContainersSurviveAKilledEngineWithLiveRestore(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{LiveRestore: true})
	c := connect(t, d)
	id := runContainer(t, c, dockertest.LoadImage(t, d))
	before, engine := pidOf(t, c, id), d.Pid()
	d.Kill()
	if _, err := c.Facts(t.Context()); err == nil {
		t.Error("an engine that was killed answers")
	}
	d.Launch()
	if after := pidOf(t, c, id); after != before || d.Pid() == engine {
		t.Errorf("the container's process is %d, was %d; the engine's is %d, was %d", after, before, d.Pid(), engine)
	}
	d.Restart()
	if after := pidOf(t, c, id); after != before {
		t.Errorf("the container's process is %d after a restart, was %d", after, before)
	}
}

func TestAStoppedEngineStopsItsContainers(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{Args: []string{"--shutdown-timeout", "1"}})
	c := connect(t, d)
	id := runContainer(t, c, dockertest.LoadImage(t, d))
	d.Restart()
	if pid := pidOf(t, c, id); pid != 0 {
		t.Errorf("the container runs as process %d", pid)
	}
}
