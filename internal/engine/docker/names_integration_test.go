//go:build integration

package docker_test

import (
	"errors"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/errs"
)

// TestNamesInUse: a sandbox is made although its name is in use. berth removes the container that has
// the name only if this berth made it and has lost it.
func TestNamesInUse(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{})
	image := dockertest.LoadImage(t, d)
	c, err := api.New(api.Options{Endpoint: d.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, test := range map[string]struct {
		labels map[string]string
		stays  bool
	}{
		"another program's": {nil, true},
		"another berth's":   {map[string]string{labels.Instance: "other", labels.ID: hexID("lost")}, true},
		"a lost one":        {map[string]string{labels.Instance: instanceOver(d), labels.ID: hexID("lost")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, d)
			id := hexID(t.Name())
			config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "truth", Namespace: "default", Uid: id[40:]}}
			made, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{
				Name: labels.SandboxName(config), Config: &container.Config{Image: image.ID, Labels: test.labels},
			})
			if err != nil {
				t.Fatal(err)
			}
			newPod(t, e, image)
			_, err = c.ContainerInspect(t.Context(), made.ID, client.ContainerInspectOptions{})
			if stays := err == nil; stays != test.stays || err != nil && !errors.Is(err, errs.NotFound) {
				t.Errorf("the container that had the name is there: %v, %v", stays, err)
			}
		})
	}
}
