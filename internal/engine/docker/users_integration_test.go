//go:build integration

package docker_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/engine/docker/users"
	"github.com/berthrun/berth/internal/errs"
)

// TestUsersAreTheImages: a pod that mounts its own /etc/passwd changes the users of no other pod with
// the same image. The container that the users were read from is removed, also after a crash.
func TestUsersAreTheImages(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{})
	e, image := newEngine(t, d), dockertest.LoadImage(t, d)
	direct, err := api.New(api.Options{Endpoint: d.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	passwd := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(passwd, []byte("app:x:0:0::/:/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPod(t, e, image)
	asApp := func(config *runtimeapi.ContainerConfig) { config.Linux.SecurityContext.RunAsUsername = "app" }
	for _, name := range []string{"mounts", "plain"} {
		id := p.run(name, "exec sleep 100000", func(config *runtimeapi.ContainerConfig) {
			asApp(config)
			if name == "mounts" {
				config.Mounts = []*runtimeapi.Mount{{HostPath: passwd, ContainerPath: "/etc/passwd"}}
			}
		})
		var ids bytes.Buffer
		p.exec(engine.ExecSpec{ContainerID: id, Stdout: &ids}, "grep -e ^Uid -e ^Gid -e ^Groups /proc/1/status")
		if got := strings.Join(strings.Fields(ids.String()), " "); got != "Uid: 1000 1000 1000 1000 Gid: 1001 1001 1001 1001 Groups: 50" &&
			got != "Uid: 1000 1000 1000 1000 Gid: 1001 1001 1001 1001 Groups: 50 1001" {
			t.Errorf("the ids of container %s are %q", name, got)
		}
	}
	all, err := direct.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	if err != nil || len(all.Items) != 3 {
		t.Errorf("%d containers, %v; want the three of the pod", len(all.Items), err)
	}

	lost := hexID(t.Name() + "lost")
	made, err := direct.ContainerCreate(t.Context(), users.Bare("k8s_lost_truth_default_uid_0", image.ID, map[string]string{
		labels.ID: lost, labels.SandboxID: p.spec.ID, labels.Instance: instanceOver(d), labels.Type: labels.TypeContainer,
		labels.Container: "lost", "io.kubernetes.pod.name": "truth", "io.kubernetes.pod.namespace": "default",
	}))
	if err != nil {
		t.Fatal(err)
	}
	listed, err := e.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, actual := range listed {
		found = found || actual.ID == lost
	}
	if !found {
		t.Errorf("container %s is not in %v", lost, listed)
	}
	if err := e.Remove(context.WithoutCancel(t.Context()), lost); err != nil {
		t.Error(err)
	}
	if _, err := direct.ContainerInspect(t.Context(), made.ID, client.ContainerInspectOptions{}); !errors.Is(err, errs.NotFound) {
		t.Errorf("the lost container: %v, want NotFound", err)
	}
}
