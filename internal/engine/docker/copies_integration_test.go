//go:build integration

package docker_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine/docker"
)

// TestCopiesOfContainers: docker commit copies berth's labels into an image, and what a person runs
// from it has them. berth neither takes it for its own container nor removes it. Its own containers
// stay its own when a person renames them.
func TestCopiesOfContainers(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{})
	image := dockertest.LoadImage(t, d)
	c, err := api.New(api.Options{Endpoint: d.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	byHand, err := client.New(client.WithHost(d.Endpoint))
	if err != nil {
		t.Fatal(err)
	}
	defer byHand.Close()
	open := func() *docker.Engine {
		t.Helper()
		e, err := docker.New(t.Context(), docker.Config{
			Instance: "copies", StateDir: t.TempDir(), NetNSDir: "/run/netns", Client: c,
		}, docker.Rules{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return e
	}
	create := func(name, image string, network container.NetworkMode, parent string, labels map[string]string) string {
		t.Helper()
		made, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Name: name, Config: &container.Config{Image: image, Cmd: []string{"sh"}, Labels: labels},
			HostConfig: &container.HostConfig{NetworkMode: network, Resources: container.Resources{CgroupParent: parent}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return made.ID
	}
	copyOf := func(id string, network container.NetworkMode) string {
		t.Helper()
		made, err := byHand.ContainerCommit(t.Context(), id, client.ContainerCommitOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return create("", made.ID, network, "", nil)
	}
	label := func(id, kind, sandbox string) map[string]string {
		return map[string]string{
			"run.berth.instance": "copies", "run.berth.id": id, "io.kubernetes.docker.type": kind, "io.kubernetes.sandbox.id": sandbox,
			"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "default",
		}
	}
	sandboxID, mainID, renamedID := strings.Repeat("a", 64), strings.Repeat("b", 64), strings.Repeat("c", 64)
	sandbox := create("k8s_POD_web_default_uid_0", image.ID, "none", "/pods", label(sandboxID, "podsandbox", ""))
	shared := container.NetworkMode("container:" + sandbox)
	main := create("k8s_main_web_default_uid_0", image.ID, shared, "/pods", label(mainID, "container", sandbox))
	renamed := create("renamed-by-hand", image.ID, shared, "/pods", label(renamedID, "container", sandbox))
	copies := []string{copyOf(sandbox, "none"), copyOf(main, "none"), copyOf(main, "host"), copyOf(main, shared)}

	e := open()
	listed, err := e.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, a := range listed {
		ids = append(ids, a.ID)
	}
	if want := []string{sandboxID, mainID, renamedID}; !slices.Equal(ids, want) {
		t.Errorf("listed %v, want %v", ids, want)
	}
	fresh := open() // it has listed nothing, and finds them one by one
	for _, id := range []string{mainID, renamedID} {
		if err := fresh.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if err := fresh.RemoveSandbox(t.Context(), sandboxID); err != nil {
		t.Error(err)
	}
	for _, id := range []string{sandbox, main, renamed} {
		if _, err := c.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{}); err == nil {
			t.Errorf("container %s is left", id)
		}
	}
	for _, id := range copies {
		if _, err := c.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{}); err != nil {
			t.Errorf("a person's container: %v", err)
		}
	}
	if left, err := e.List(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("listed %v, %v", left, err)
	}
}
