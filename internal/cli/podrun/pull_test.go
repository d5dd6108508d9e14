package podrun

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestContainerUsesWhatWasPulled: where a name without a registry means an older image of the node, the container gets the
// one that was pulled for it, under the name of the file.
func TestContainerUsesWhatWasPulled(t *testing.T) {
	k := &podRun{pulled: map[string]string{"app": "sha256:1"}}
	spec := func(name string) *runtimeapi.ImageSpec {
		return &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: name}
	}
	config := &runtimeapi.ContainerConfig{Image: spec("app"), Mounts: []*runtimeapi.Mount{{HostPath: "/etc"}, {Image: spec("app")}, {Image: spec("other")}}}
	k.usePulled(config)
	for i, c := range []struct {
		got  *runtimeapi.ImageSpec
		want string
		name string
	}{{config.Image, "sha256:1", "app"}, {config.Mounts[1].Image, "sha256:1", "app"}, {config.Mounts[2].Image, "other", "other"}} {
		if c.got.Image != c.want || c.got.UserSpecifiedImage != c.name {
			t.Errorf("%d: %v, want %s named %s", i, c.got, c.want, c.name)
		}
	}
	if config.Mounts[0].Image != nil {
		t.Error("a mount without an image got one")
	}
}
