package volume

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// testLabel is an attribute that every user may set.
const testLabel = "user.berth.label"

func labelOf(t *testing.T, path string) string {
	t.Helper()
	value := make([]byte, 256)
	n, err := syscall.Getxattr(path, testLabel, value)
	if err != nil {
		return err.Error()
	}
	return string(value[:n])
}

// volumeMaker is an image.Rootfs that can only create volumes.
type volumeMaker struct {
	image.Rootfs
	dir  string
	made []image.VolumeSpec
}

func (m *volumeMaker) MakeVolume(ctx context.Context, spec image.VolumeSpec) (string, error) {
	m.made = append(m.made, spec)
	dir := filepath.Join(m.dir, spec.Name)
	if err := os.Mkdir(dir, 0o755); err != nil || spec.From == "" {
		return dir, err
	}
	return dir, sysfile.CopyTree(ctx, spec.From, dir, spec.Progress)
}

func makeVolumes(t *testing.T, labels selinux.Labels, declared ...string) ([]ocispec.ImageVolume, []string, *volumeMaker, error) {
	t.Helper()
	rootfs := t.TempDir()
	if err := errors.Join(
		os.MkdirAll(filepath.Join(rootfs, "run", "lock"), 0o755),
		os.WriteFile(filepath.Join(rootfs, "run", "lock", "file"), nil, 0o600),
		os.MkdirAll(filepath.Join(rootfs, "var"), 0o755),
		os.Symlink("/run", filepath.Join(rootfs, "var", "run")),
		os.Symlink("/nowhere/yet", filepath.Join(rootfs, "loose")),
		os.Symlink("../../../..", filepath.Join(rootfs, "up")),
		os.WriteFile(filepath.Join(rootfs, "file"), nil, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	maker := &volumeMaker{dir: t.TempDir()}
	image := imagespec.ImageConfig{Volumes: map[string]struct{}{}}
	for _, path := range declared {
		image.Volumes[path] = struct{}{}
	}
	var stages []string
	m := Maker{Rootfs: maker, Relabel: selinux.NewRelabeller(testLabel), Log: slog.New(slog.DiscardHandler)}
	volumes, err := m.Make(t.Context(), &Container{
		ID: "c", Image: image, Config: &runtimeapi.ContainerConfig{}, Rootfs: rootfs, Labels: labels,
		Stage: func(name, _ string) { stages = append(stages, name) },
	})
	for i, spec := range maker.made {
		maker.made[i].From, _ = filepath.Rel(rootfs, spec.From)
	}
	return volumes, stages, maker, err
}

// TestImageVolumesAreCreated: links of the image are resolved inside of it. The copies have the
// container's label, even if the pod's volumes have another one.
func TestImageVolumesAreCreated(t *testing.T) {
	labels := selinux.Labels{Process: "u:r:container_t:s0:c1,c2", Mount: "u:r:file_t:s0:c1,c2"}
	volumes, stages, maker, err := makeVolumes(t, labels, "/var/run/lock", "loose/x", "/up/run/lock/../other")
	if err != nil {
		t.Fatal(err)
	}
	want := []ocispec.ImageVolume{
		{Destination: "/nowhere/yet/x", Source: filepath.Join(maker.dir, "0")},
		{Destination: "/run/lock", Source: filepath.Join(maker.dir, "1")},
		{Destination: "/run/other", Source: filepath.Join(maker.dir, "2")},
	}
	if !slices.Equal(volumes, want) {
		t.Errorf("volumes %+v, want %+v", volumes, want)
	}
	if from := []string{maker.made[0].From, maker.made[1].From, maker.made[2].From}; !slices.Equal(from, []string{"", "run/lock", ""}) {
		t.Errorf("copied from %q", from)
	}
	for _, path := range []string{"0", "1", "1/file", "2"} {
		if got := labelOf(t, filepath.Join(maker.dir, path)); got != labels.Mount {
			t.Errorf("%s has the label %q", path, got)
		}
	}
	if len(stages) < 3 || stages[0] != "copy the image's volumes" {
		t.Errorf("stages %q", stages)
	}
}

func TestImageVolumesAreNotCreated(t *testing.T) {
	for name, c := range map[string]struct {
		declared []string
		kind     error
	}{
		"none":   {nil, nil},
		"a file": {[]string{"/file"}, errs.Invalid},
	} {
		volumes, stages, maker, err := makeVolumes(t, selinux.Labels{}, c.declared...)
		if !errors.Is(err, c.kind) || len(volumes)+len(stages)+len(maker.made) != 0 {
			t.Errorf("%s: %v, %q, %v", name, volumes, stages, err)
		}
	}
}
