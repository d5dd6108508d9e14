package ocispec

import (
	"errors"
	"slices"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// TestTmpfsIsMountedInItsTurn: a tmpfs is mounted after the mounts above it, before the mounts
// below it, and before the sandbox's own files.
func TestTmpfsIsMountedInItsTurn(t *testing.T) {
	in := plainInput()
	in.Config.Annotations = map[string]string{request.AnnotationTmpfs: "/run,/data/cache,/etc"}
	in.Config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/run/x", HostPath: "/x"}, {ContainerPath: "/data", HostPath: "/d"}}
	in.Sources = map[string]Source{"/x": {Path: "/x"}, "/d": {Path: "/d"}}
	spec, err := Container(in)
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, m := range spec.Mounts {
		at[m.Destination] = i
		if m.Destination == "/run" && (m.Type != "tmpfs" || !slices.Equal(m.Options, []string{"nosuid", "nodev"})) {
			t.Errorf("/run: %+v", m)
		}
	}
	for _, pair := range [][2]string{{"/run", "/run/x"}, {"/data", "/data/cache"}, {"/etc", "/etc/hosts"}, {"/proc", "/run"}} {
		first, ok := at[pair[0]]
		second, ok2 := at[pair[1]]
		if !ok || !ok2 || first > second {
			t.Errorf("%s is mounted at %d, %s at %d: %v %v", pair[0], first, pair[1], second, ok, ok2)
		}
	}
}

func TestAskedVolumes(t *testing.T) {
	image := imagespec.ImageConfig{Volumes: map[string]struct{}{"/data": {}, "/run/old": {}}}
	links := func(p string) (string, error) { return strings.Replace(p, "/link", "/real", 1), nil }
	config := &runtimeapi.ContainerConfig{Annotations: map[string]string{request.AnnotationVolumes: "/var,/data,/link/x", request.AnnotationTmpfs: "/run"}}
	paths, leftOut, err := ImageVolumes(image, config, links)
	if want := []string{"/data", "/real/x", "/var"}; err != nil || len(leftOut) > 0 || !slices.Equal(paths, want) {
		t.Errorf("%q, left out %q, %v; want %q", paths, leftOut, err, want)
	}
	into := func(string) (string, error) { return "/proc/1", nil }
	if _, _, err := ImageVolumes(imagespec.ImageConfig{}, config, into); !errors.Is(err, errs.Invalid) {
		t.Errorf("a volume that leads to /proc: %v", err)
	}
}
