package ocispec

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// declaring returns an image with volumes.
func declaring(volumes ...string) imagespec.ImageConfig {
	image := imagespec.ImageConfig{Volumes: map[string]struct{}{}}
	for _, v := range volumes {
		image.Volumes[v] = struct{}{}
	}
	return image
}

// links is an image with these links, each to a directory.
func links(to map[string]string) func(string) (string, error) {
	return func(at string) (string, error) {
		for range 10 {
			found := ""
			for from := range maps.Keys(to) {
				if request.IsBelow(at, from) {
					found = from
				}
			}
			if found == "" {
				return at, nil
			}
			at = path.Clean("/" + to[found] + strings.TrimPrefix(at, found))
		}
		return "", errors.New("too many links")
	}
}

func TestImageVolumes(t *testing.T) {
	linked := links(map[string]string{"/var/run": "/run", "/p": "/proc", "/root": "/", "/loop": "/loop"})
	for _, test := range []struct {
		name          string
		volumes       []string
		mounts        []string
		want, leftOut []string
	}{
		{name: "none"},
		{name: "in order", volumes: []string{"/b", "/a/c", "/a"}, want: []string{"/a", "/a/c", "/b"}},
		{name: "unclean", volumes: []string{"data", "/../x", "./y/", "/z//w/.", "a:b", "C:/win"}, want: []string{"/C:/win", "/a:b", "/data", "/x", "/y", "/z/w"}},
		{name: "the same twice", volumes: []string{"/data", "/data/", "data", "/var/run/x", "/run/x"}, want: []string{"/data", "/run/x"}},
		{
			name: "the runtime's", volumes: []string{"/", "", "/..", "/proc", "/sys/fs/cgroup", "/dev/shm", "/etc/hosts", "/p/self", "/root", "/process", "/etc"},
			want: []string{"/etc", "/process"}, leftOut: []string{"", "/", "/..", "/dev/shm", "/etc/hosts", "/p/self", "/proc", "/root", "/sys/fs/cgroup"},
		},
		{name: "a pod's mount there", volumes: []string{"/data", "/other"}, mounts: []string{"/data/"}, want: []string{"/other"}},
		{name: "a pod's mount above", volumes: []string{"/data/db", "/data-2"}, mounts: []string{"/data"}, want: []string{"/data-2"}},
		{name: "a pod's mount below", volumes: []string{"/data"}, mounts: []string{"/data/db"}, want: []string{"/data"}},
		{name: "by another name", volumes: []string{"/var/run/a", "/run/b"}, mounts: []string{"/run/a", "/var/run/b"}},
		{name: "a pod's mount that cannot be", volumes: []string{"/data"}, mounts: []string{"/loop"}, want: []string{"/data"}},
	} {
		config := &runtimeapi.ContainerConfig{}
		for _, to := range test.mounts {
			config.Mounts = append(config.Mounts, &runtimeapi.Mount{ContainerPath: to})
		}
		got, leftOut, err := ImageVolumes(declaring(test.volumes...), config, linked)
		if err != nil || !slices.Equal(got, test.want) || !slices.Equal(leftOut, test.leftOut) {
			t.Errorf("%s: %q, left out %q, %v; want %q and %q", test.name, got, leftOut, err, test.want, test.leftOut)
		}
	}
	config := &runtimeapi.ContainerConfig{Devices: []*runtimeapi.Device{{ContainerPath: "/data"}}}
	if got, _, err := ImageVolumes(declaring("/data"), config, linked); err != nil || len(got) != 0 {
		t.Errorf("a device there: %q, %v", got, err)
	}
}

func TestImageVolumesRefused(t *testing.T) {
	many := imagespec.ImageConfig{Volumes: map[string]struct{}{}}
	for i := range maxImageVolumes + 1 {
		many.Volumes[fmt.Sprint("/", i)] = struct{}{}
	}
	for name, image := range map[string]imagespec.ImageConfig{
		"too many": many, "NUL": declaring("/a\x00b"), "a line": declaring("/a\nb"), "links without end": declaring("/loop/x"),
	} {
		if got, _, err := ImageVolumes(image, &runtimeapi.ContainerConfig{}, links(map[string]string{"/loop": "/loop"})); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %q, %v; want kind Invalid", name, got, err)
		}
	}
}

// Image volumes are writable, are mounted below the pod's mounts, and hide no file of the runtime.
func TestImageVolumeMounts(t *testing.T) {
	in := plainInput()
	in.Config.Linux.SecurityContext.ReadonlyRootfs = true
	in.Config.Mounts = []*runtimeapi.Mount{{HostPath: "/src", ContainerPath: "/x/c"}}
	in.Sources = map[string]Source{"/src": {Path: "/src"}}
	in.ImageVolumes = []ImageVolume{{"/etc", "/v/0"}, {"/x/y/z", "/v/1"}}
	without := in
	without.ImageVolumes = nil
	spec, err := Container(in)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := Container(without)
	if err != nil {
		t.Fatal(err)
	}
	if len(spec.Mounts) != len(plain.Mounts)+2 {
		t.Fatalf("%d mounts, %d without volumes", len(spec.Mounts), len(plain.Mounts))
	}
	at := map[string]int{}
	for i, m := range spec.Mounts {
		at[m.Destination] = i
		if strings.HasPrefix(m.Source, "/v/") && !slices.Equal(m.Options, []string{"rbind", "rprivate", "rw"}) {
			t.Errorf("a volume has the options %q", m.Options)
		}
	}
	if at["/etc"] > at["/etc/hosts"] || at["/x/y/z"] > at["/x/c"] || at["/etc"] < at["/sys/fs/cgroup"] {
		t.Errorf("mounts in the order %v", spec.Mounts)
	}
}
