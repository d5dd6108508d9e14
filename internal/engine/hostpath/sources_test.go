package hostpath

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/fieldtest"
	"github.com/berthrun/berth/internal/probe"
)

func TestMountSources(t *testing.T) {
	dir := t.TempDir()
	f := Finder{Probes: &probe.Pool{Timeout: time.Second, Limit: 8}, Claims: &Claims{}}
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(real, 0o755), os.Symlink("real", link)); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(link, "missing", "deep")
	sources, toMake, err := f.Find(context.Background(), []*runtimeapi.Mount{{HostPath: link}, {HostPath: missing}}, "")
	if err != nil {
		t.Fatal(err)
	}
	if sources[link].Path != real {
		t.Errorf("a link: %+v, want %s", sources[link], real)
	}
	later := filepath.Join(real, "missing", "deep")
	if sources[missing].Path != later || len(toMake) != 1 || toMake[0] != (Missing{Field: "config.mounts[1].host_path", Path: later}) {
		t.Errorf("a missing source: %+v, to make %+v", sources[missing], toMake)
	}
	if _, err := os.Stat(filepath.Join(real, "missing")); err == nil {
		t.Error("a source was made while the container can still be refused")
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = f.Find(context.Background(), []*runtimeapi.Mount{{HostPath: filepath.Join(file, "below")}}, "")
	if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), file) || fieldtest.Named(err.Error()) != "config.mounts[0].host_path" {
		t.Errorf("a source below a file: %v, want kind Invalid and the path", err)
	}
}

func TestAbsentMountSources(t *testing.T) {
	dir := t.TempDir()
	made, refused := filepath.Join(dir, "made"), filepath.Join(dir, "refused")
	f := Finder{Probes: &probe.Pool{Timeout: time.Second, Limit: 8}, Claims: &Claims{}, Rejected: []string{refused}}
	for from, want := range map[string]error{made: nil, refused + "/": errs.Invalid} {
		_, missing, err := f.Find(t.Context(), []*runtimeapi.Mount{{HostPath: from, ContainerPath: "/x"}}, "")
		if !errors.Is(err, want) || (want == nil) != (len(missing) == 1) {
			t.Errorf("%s: %v, to make %v", from, err, missing)
		}
	}
}
