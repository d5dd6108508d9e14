package ocispec

import (
	"errors"
	"slices"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// asking is a privileged container that asks for what an annotation says.
func asking(name, value string) *runtimeapi.ContainerConfig {
	config := kubeletContainer()
	config.Linux.SecurityContext.Privileged = true
	config.Annotations = map[string]string{name: value}
	return config
}

func privilegedSandbox() *runtimeapi.PodSandboxConfig {
	sandbox := kubeletSandbox()
	sandbox.Linux.SecurityContext.Privileged = true
	return sandbox
}

func TestExtensionsRefused(t *testing.T) {
	many := make([]string, maxAsked+1)
	for i := range many {
		many[i] = "/" + strings.Repeat("a", i+1)
	}
	for _, c := range []struct{ name, value string }{
		{AnnotationTmpfs, ""},
		{AnnotationTmpfs, "run"},
		{AnnotationTmpfs, "/"},
		{AnnotationTmpfs, "/run/"},
		{AnnotationTmpfs, "/run,"},
		{AnnotationTmpfs, "/run,/run"},
		{AnnotationTmpfs, "/a/../b"},
		{AnnotationTmpfs, "/a\nb"},
		{AnnotationTmpfs, "/proc/x"},
		{AnnotationTmpfs, "/dev/shm"},
		{AnnotationTmpfs, "/etc/hosts"},
		{AnnotationTmpfs, strings.Join(many, ",")},
		{AnnotationTmpfs, "/dev/termination-log"},
		{AnnotationTmpfs, "/var/run/secrets/kubernetes.io/serviceaccount"},
		{AnnotationVolumes, "/sys/fs/cgroup"},
		{AnnotationVolumes, "/var/run/secrets/kubernetes.io/serviceaccount/x"},
		{AnnotationStorage, ""},
		{AnnotationStorage, "rel"},
		{AnnotationStorage, "/"},
		{AnnotationStorage, "/a:b"},
		{AnnotationStorage, "/a,b"},
		{AnnotationStorage, `/a\b`},
		{AnnotationStorage, "/a/"},
		{AnnotationStorage, "/a/../b"},
		{AnnotationStorage, "/a\nb"},
	} {
		err := CheckContainer(asking(c.name, c.value), privilegedSandbox())
		if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), `config.annotations["`+c.name+`"]`) {
			t.Errorf("%s=%q: %v", c.name, c.value, err)
		}
	}
	both := asking(AnnotationTmpfs, "/run,/var")
	both.Annotations[AnnotationVolumes] = "/var"
	if err := CheckContainer(both, privilegedSandbox()); !errors.Is(err, errs.Invalid) {
		t.Errorf("a volume in memory: %v", err)
	}
	sandbox := kubeletSandbox()
	sandbox.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids(100000), Gids: ids(100000)}
	kept := kubeletContainer()
	kept.Linux.SecurityContext.NamespaceOptions = sandbox.Linux.SecurityContext.NamespaceOptions
	kept.Annotations[AnnotationStorage] = "/srv/a"
	if err := CheckContainer(kept, sandbox); !errors.Is(err, errs.Unsupported) {
		t.Errorf("a storage in a user namespace: %v", err)
	}
}

func TestExtensionsPass(t *testing.T) {
	config := asking(AnnotationTmpfs, "/run,/tmp")
	config.Annotations[AnnotationVolumes] = "/var,/srv"
	config.Annotations[AnnotationStorage] = "/srv/node"
	config.Mounts = append(config.Mounts, &runtimeapi.Mount{ContainerPath: "/run/x", HostPath: "/x"}, &runtimeapi.Mount{ContainerPath: "/var/lib/y", HostPath: "/y"})
	config.Mounts = slices.DeleteFunc(config.Mounts, func(m *runtimeapi.Mount) bool { return strings.HasPrefix(m.ContainerPath, "/var/run") })
	if err := CheckContainer(config, privilegedSandbox()); err != nil {
		t.Error(err)
	}
	if got := StorageOf(config); got != "/srv/node" {
		t.Errorf("storage %q", got)
	}
}

// TestTmpfsIsMountedInItsTurn: below what it lies in, above what lies in it, and before
// the sandbox's own files.
func TestTmpfsIsMountedInItsTurn(t *testing.T) {
	in := plainInput()
	in.Config.Annotations = map[string]string{AnnotationTmpfs: "/run,/data/cache,/etc"}
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
	config := &runtimeapi.ContainerConfig{Annotations: map[string]string{AnnotationVolumes: "/var,/data,/link/x", AnnotationTmpfs: "/run"}}
	paths, leftOut, err := ImageVolumes(image, config, links)
	if want := []string{"/data", "/real/x", "/var"}; err != nil || len(leftOut) > 0 || !slices.Equal(paths, want) {
		t.Errorf("%q, left out %q, %v; want %q", paths, leftOut, err, want)
	}
	into := func(string) (string, error) { return "/proc/1", nil }
	if _, _, err := ImageVolumes(imagespec.ImageConfig{}, config, into); !errors.Is(err, errs.Invalid) {
		t.Errorf("a volume that leads to /proc: %v", err)
	}
}
