//go:build integration

package docker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker"
)

// TestOneBerthAdopts: of several berths on one Docker Engine, the first that adopts stays the one
// that does, and no berth takes over what another berth has made.
func TestOneBerthAdopts(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{})
	image := dockertest.LoadImage(t, d)
	c, err := api.New(api.Options{Endpoint: d.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	open := func(instance string, on bool) *docker.Engine {
		t.Helper()
		e, err := docker.New(t.Context(), docker.Config{
			Instance: instance, StateDir: t.TempDir(), NetNSDir: "/run/netns", Client: c, Adoption: docker.Adoption{On: on},
		}, docker.Rules{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return e
	}
	former := func(e *docker.Engine) string {
		t.Helper()
		found, err := e.Former(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, sb := range found.Sandboxes {
			if got := sb.Sandbox.CgroupParent; got != "" { // the engine's default cgroup is not a pod's
				t.Errorf("limits of a pod without a cgroup would hold in %s", got)
			}
			ids = append(ids, sb.ID)
		}
		for _, c := range found.Containers {
			ids = append(ids, c.ID+" "+string(c.State)+" in "+c.SandboxID)
		}
		return strings.Join(ids, ", ")
	}
	create := func(name string, network container.NetworkMode, labels map[string]string) string {
		t.Helper()
		made, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Name: name, Config: &container.Config{Image: image.ID, Cmd: []string{"sh"}, Labels: labels},
			HostConfig: &container.HostConfig{NetworkMode: network},
		})
		if err != nil {
			t.Fatal(err)
		}
		return made.ID
	}
	first, second, off := open("first", true), open("second", true), open("third", false)
	create("k8s_main_berths_default_uid_0", "none", map[string]string{
		"io.kubernetes.docker.type": "container", "run.berth.id": strings.Repeat("a", 64), "run.berth.instance": "second",
	})
	if got := former(first); got != "" {
		t.Errorf("a container of another berth can be adopted: %s", got)
	}
	sandbox := create("k8s_POD_web_default_uid_0", "none", map[string]string{"io.kubernetes.docker.type": "podsandbox"})
	labels := map[string]string{
		"io.kubernetes.docker.type": "container", "io.kubernetes.container.name": "main", "io.kubernetes.sandbox.id": sandbox,
		"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": "uid",
	}
	inner := create("k8s_main_web_default_uid_0", container.NetworkMode("container:"+sandbox), labels)
	// What a person runs from an image that was made of a pod's container has the same labels.
	create("debug-main", "none", labels)
	create("debug-pod", "none", map[string]string{
		"io.kubernetes.docker.type": "podsandbox", "io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "default",
	})
	if got := former(off); got != "" {
		t.Errorf("a berth that is not to adopt: %s", got)
	}
	want := fmt.Sprintf("%s, %s created in %s", sandbox, inner, sandbox)
	for range 2 {
		if got := former(first); got != want {
			t.Errorf("the first berth found %q, want %q", got, want)
		}
		if got := former(second); got != "" {
			t.Errorf("the second berth found %s", got)
		}
	}
	for _, e := range []*docker.Engine{first, second} {
		listed, err := e.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range listed {
			if a.ID == sandbox || a.ID == inner {
				t.Errorf("%s is listed before it is adopted", a.ID)
			}
		}
	}
	if err := first.AdoptSandbox(t.Context(), sandbox, &engine.Sandbox{}); err != nil {
		t.Error(err)
	}
	if err := first.RemoveSandbox(t.Context(), sandbox); err != nil {
		t.Error(err)
	}
	if _, err := c.ContainerInspect(t.Context(), sandbox, client.ContainerInspectOptions{}); err == nil {
		t.Error("an adopted sandbox is left after its removal")
	}
}
