//go:build integration

package docker_test

import (
	"path/filepath"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine/docker"
	"github.com/berthrun/berth/internal/engine/enginetest"
)

// instanceOver names the berth over an engine. Two runs of these tests have different engines, and share
// the directory of network namespaces.
func instanceOver(d *dockertest.Daemon) string {
	return "test" + strings.TrimPrefix(filepath.Base(filepath.Dir(d.Root)), "dkr-")
}

// newEngine returns an engine over a Docker Engine.
func newEngine(t *testing.T, d *dockertest.Daemon) *docker.Engine {
	t.Helper()
	client, err := api.New(api.Options{Endpoint: d.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	e, err := docker.New(t.Context(), docker.Config{
		Instance: instanceOver(d), StateDir: t.TempDir(), NetNSDir: "/run/netns", Client: client,
	}, docker.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// TestEngine runs the suite of all engines.
func TestEngine(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{})
	image := dockertest.LoadImage(t, d)
	enginetest.Run(t, func(t *testing.T) *enginetest.Setup {
		return &enginetest.Setup{
			Engine: newEngine(t, d), ImageID: image.ID, ImageConfig: imagespec.ImageConfig{}, Programs: image.Programs,
			Sandbox: func(*runtimeapi.PodSandboxConfig) {},
		}
	})
}
