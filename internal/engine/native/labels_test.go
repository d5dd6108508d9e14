package native

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/ocispec"
)

// testLabel is an attribute that every user may set.
const testLabel = "user.berth.label"

// fakePolicy is a fake SELinux policy for hosts without SELinux.
type fakePolicy struct{ reserved []string }

func (p *fakePolicy) Enabled() bool { return true }

func (p *fakePolicy) Pairs() int { return 1 << 20 }

func (p *fakePolicy) Fresh() (selinux.Labels, error) {
	level := fmt.Sprintf("s0:c%d,c1000", len(p.reserved))
	p.reserved = append(p.reserved, level)
	return selinux.Labels{Process: "u:r:container_t:" + level, Mount: "u:r:container_file_t:" + level}, nil
}

func (p *fakePolicy) Reserve(label string) error {
	if level := strings.SplitN(label, ":", 4)[3]; !slices.Contains(p.reserved, level) {
		p.reserved = append(p.reserved, level)
	}
	return nil
}

func (p *fakePolicy) Release(label string) {
	p.reserved = slices.DeleteFunc(p.reserved, func(level string) bool { return strings.HasSuffix(label, level) })
}

func (p *fakePolicy) Check(string) error { return nil }

// labelled returns an engine that can only label.
func labelled(dir string, rules Rules) (*Engine, *fakePolicy) {
	p := &fakePolicy{}
	return ruled(&Engine{
		cfg:     Config{StateDir: dir, NetNSDir: dir},
		selinux: selinux.New(p, selinux.Auto), relabel: selinux.NewRelabeller(testLabel),
	}, rules), p
}

func fileLabel(t *testing.T, path string) string {
	t.Helper()
	value := make([]byte, 256)
	n, err := syscall.Getxattr(path, testLabel, value)
	if err != nil {
		return err.Error()
	}
	return string(value[:n])
}

// The files that a sandbox's containers share have its label. The label survives the daemon, and is
// free again once the sandbox is removed.
func TestLabelsOfSandboxes(t *testing.T) {
	dir := t.TempDir()
	e, _ := labelled(dir, Rules{})
	paths := e.sandboxPaths("pod")
	for _, d := range []string{paths.dir, paths.shm} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	hosts := filepath.Join(dir, "hosts")
	if err := os.WriteFile(hosts, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sb := &sandbox{}
	if err := e.labelSandbox(&engine.SandboxSpec{ID: "pod", Config: &runtimeapi.PodSandboxConfig{}}, paths, sb); err != nil {
		t.Fatal(err)
	}
	if sb.ProcessLabel != "u:r:container_t:s0:c0,c1000" || sb.MountLabel != "u:r:container_file_t:s0:c0,c1000" {
		t.Errorf("sandbox %+v", sb)
	}
	if err := e.labelFiles(dir, paths, sb.MountLabel); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{hosts, paths.shm} {
		if got := fileLabel(t, path); got != sb.MountLabel {
			t.Errorf("%s has %q", path, got)
		}
	}
	// A container with its own label shares the files with the others.
	spec := &containerSpec{ContainerSpec: &engine.ContainerSpec{SandboxSpec: &engine.SandboxSpec{ID: "pod", Dir: dir}}, Sandbox: sb}
	for _, c := range []struct{ labels, want string }{
		{"s0:c0,c1000", sb.MountLabel},
		{"s0:c7,c8", "u:r:container_file_t:s0"},
	} {
		err := e.shareFiles(spec, selinux.Labels{Process: "u:r:container_t:" + c.labels, Mount: "u:r:container_file_t:" + c.labels})
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{hosts, paths.shm} {
			if got := fileLabel(t, path); got != c.want {
				t.Errorf("%s has %q for a container with %s", path, got, c.labels)
			}
		}
	}
	again, p := labelled(dir, Rules{})
	if err := again.adoptLabels(); err != nil || !slices.Equal(p.reserved, []string{"s0:c0,c1000"}) {
		t.Errorf("after a restart %v are reserved, %v", p.reserved, err)
	}
	again.selinux.Release("pod")
	if len(p.reserved) != 0 {
		t.Errorf("still reserved: %v", p.reserved)
	}
	if err := os.WriteFile(paths.labels, []byte("{half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := again.adoptLabels(); err != nil {
		t.Errorf("a file that was half written: %v", err)
	}
}

func TestVolumesAreRelabelled(t *testing.T) {
	for name, c := range map[string]struct {
		rules   Rules
		process string
		want    string
	}{
		"private":        {Rules{}, "u:r:container_t:s0:c1,c2", "u:r:file_t:s0:c1,c2"},
		"shared":         {Rules{SharedVolumes: true}, "u:r:container_t:s0:c1,c2", "u:r:file_t:s0"},
		"not confined":   {Rules{}, "u:r:spc_t:s0:c1,c2", "no data available"},
		"privileged":     {Rules{}, "", "no data available"},
		"without labels": {Rules{}, "none", "no data available"},
	} {
		volume, kept := t.TempDir(), t.TempDir()
		if err := os.WriteFile(filepath.Join(volume, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		e, _ := labelled(t.TempDir(), c.rules)
		labels := selinux.Labels{Process: c.process, Mount: "u:r:file_t:s0:c1,c2"}
		if c.process == "none" {
			labels = selinux.Labels{}
		}
		var stages []string
		spec := &containerSpec{ContainerSpec: &engine.ContainerSpec{
			Config: &runtimeapi.ContainerConfig{Mounts: []*runtimeapi.Mount{
				{HostPath: volume, ContainerPath: "/v", SelinuxRelabel: true}, {HostPath: kept, ContainerPath: "/k"},
			}},
			Stage: func(name, _ string) { stages = append(stages, name) },
		}}
		sources := map[string]ocispec.Source{volume: {Path: volume}, kept: {Path: kept}}
		if err := e.relabelVolumes(context.Background(), spec, sources, labels); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := fileLabel(t, filepath.Join(volume, "file")); got != c.want {
			t.Errorf("%s: the volume has %q, want %q", name, got, c.want)
		}
		if got := fileLabel(t, kept); got != "no data available" {
			t.Errorf("%s: a volume that does not ask for it has %q", name, got)
		}
		if told := slices.Contains(stages, "relabel volumes"); told != strings.HasPrefix(c.want, "u:") {
			t.Errorf("%s: stages %v", name, stages)
		}
	}
}
