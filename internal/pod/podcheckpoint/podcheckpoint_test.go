package podcheckpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

func config(name string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Command: []string{"run"}, Args: []string{"-v"}, WorkingDir: "/srv",
		Envs: []*runtimeapi.KeyValue{{Key: "A", Value: []byte("1")}, {Key: "B", Value: []byte("2")}},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			RunAsUser: &runtimeapi.Int64Value{Value: 7}, RunAsGroup: &runtimeapi.Int64Value{Value: 8}, SupplementalGroups: []int64{2, 1},
		}},
	}
}

func written(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	pod := &Pod{Name: "web", Containers: []Container{
		{Name: "a", File: FileOf(0), Process: ProcessOf(config("a"))}, {Name: "b", File: FileOf(1), Process: ProcessOf(config("b"))},
	}}
	if err := pod.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestDescription(t *testing.T) {
	dir := written(t)
	if info, err := os.Stat(filepath.Join(dir, fileName)); err != nil || info.Mode() != 0o600 {
		t.Errorf("the description has values of environments: %v, %v", info, err)
	}
	pod, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	// The order of containers, environment and groups means nothing.
	other := config("a")
	slices.Reverse(other.Envs)
	slices.Reverse(other.Linux.SecurityContext.SupplementalGroups)
	files, err := pod.Match([]*runtimeapi.ContainerConfig{config("b"), other})
	if err != nil || !slices.Equal(files, []string{"1.tar", "0.tar"}) {
		t.Errorf("got %q, %v", files, err)
	}
	if err := pod.Write(dir); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second description: %v", err)
	}
	if _, err := Read(dir); err != nil {
		t.Errorf("the first one is gone: %v", err)
	}
}

func TestRequestsThatDoNotMatch(t *testing.T) {
	pod, err := Read(written(t))
	if err != nil {
		t.Fatal(err)
	}
	security := func(c *runtimeapi.ContainerConfig) *runtimeapi.LinuxContainerSecurityContext {
		return c.Linux.SecurityContext
	}
	for field, change := range map[string]func(c *runtimeapi.ContainerConfig){
		"container_configs[1].metadata.name":                              func(c *runtimeapi.ContainerConfig) { c.Metadata.Name = "c" },
		"container_configs[1].command":                                    func(c *runtimeapi.ContainerConfig) { c.Command = nil },
		"container_configs[1].args":                                       func(c *runtimeapi.ContainerConfig) { c.Args = []string{"-q"} },
		"container_configs[1].working_dir":                                func(c *runtimeapi.ContainerConfig) { c.WorkingDir = "/" },
		`container_configs[1].envs["A"]`:                                  func(c *runtimeapi.ContainerConfig) { c.Envs[0].Value = []byte("9") },
		`container_configs[1].envs["B"]`:                                  func(c *runtimeapi.ContainerConfig) { c.Envs = c.Envs[:1] },
		`container_configs[1].envs["C"]`:                                  func(c *runtimeapi.ContainerConfig) { c.Envs = append(c.Envs, &runtimeapi.KeyValue{Key: "C"}) },
		"container_configs[1].linux.security_context.run_as_user":         func(c *runtimeapi.ContainerConfig) { security(c).RunAsUser = nil },
		"container_configs[1].linux.security_context.run_as_group":        func(c *runtimeapi.ContainerConfig) { security(c).RunAsGroup.Value = 9 },
		"container_configs[1].linux.security_context.run_as_username":     func(c *runtimeapi.ContainerConfig) { security(c).RunAsUsername = "root" },
		"container_configs[1].linux.security_context.supplemental_groups": func(c *runtimeapi.ContainerConfig) { security(c).SupplementalGroups = nil },
	} {
		changed := config("b")
		change(changed)
		_, err := pod.Match([]*runtimeapi.ContainerConfig{config("a"), changed})
		if !errors.Is(err, errs.Invalid) || !strings.HasPrefix(err.Error(), field+":") {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := pod.Match([]*runtimeapi.ContainerConfig{config("b")}); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("a container less: %v", err)
	}
}

func TestHostileDescriptions(t *testing.T) {
	for words, text := range map[string]string{
		"unexpected end":   `{"version":1`,
		"version 2":        `{"version":2}`,
		"version 0":        `{}`,
		"is there twice":   `{"version":1,"containers":[{"name":"a","file":"0.tar"},{"name":"a","file":"1.tar"}]}`,
		"has no name":      `{"version":1,"containers":[{"file":"0.tar"}]}`,
		"archive of its":   `{"version":1,"containers":[{"name":"a","file":"0.tar"},{"name":"b","file":"0.tar"}]}`,
		"../0.tar":         `{"version":1,"containers":[{"name":"a","file":"../0.tar"}]}`,
		"/etc/shadow":      `{"version":1,"containers":[{"name":"a","file":"/etc/shadow"}]}`,
		`0.tar\n`:          `{"version":1,"containers":[{"name":"a","file":"0.tar\n"}]}`,
		"cannot unmarshal": `{"version":1,"containers":{}}`,
	} {
		if _, err := decode([]byte(text)); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestNoLinkIsFollowed: neither the directory nor the description is a link, and a FIFO blocks nobody.
func TestNoLinkIsFollowed(t *testing.T) {
	whole, top := written(t), t.TempDir()
	at := func(name string) string { return filepath.Join(top, name) }
	for _, name := range []string{"link", "fifo", "directory", "large"} {
		if err := os.Mkdir(at(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	large, err := os.Create(at("large/pod.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(whole, at("dir")), os.Symlink(filepath.Join(whole, fileName), at("link/pod.json")),
		unix.Mkfifo(at("fifo/pod.json"), 0o600), os.Mkdir(at("directory/pod.json"), 0o700), large.Truncate(maxDescription+1), large.Close()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dir", "link", "fifo", "directory", "large"} {
		if _, err := Read(at(name)); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, missing := range []string{at("missing"), t.TempDir()} {
		if _, err := Read(missing); !errors.Is(err, errs.NotFound) {
			t.Errorf("%s: %v", missing, err)
		}
	}
	for _, dir := range []string{at("dir"), at("missing"), whole, filepath.Join(whole, fileName)} {
		if err := CheckEmpty(dir); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s takes a checkpoint: %v", dir, err)
		}
	}
	if err := CheckEmpty(t.TempDir()); err != nil {
		t.Error(err)
	}
}

func TestBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, ctx := NewBarrier(2), t.Context()
		first := make(chan error, 1)
		go func() { first <- b.Reached(ctx, engine.CheckpointPaused) }()
		synctest.Wait()
		if len(first) != 0 {
			t.Error("one container does not wait for the other")
		}
		if err := errors.Join(b.Reached(ctx, engine.CheckpointPaused), <-first); err != nil {
			t.Error(err)
		}
		// One fails before the next stage: the other does not wait for it, and does not go on.
		broken := errors.New("broken")
		ending, fail := context.WithCancelCause(ctx)
		go func() { first <- b.Reached(ending, engine.CheckpointCaptured) }()
		synctest.Wait()
		fail(broken)
		if err := <-first; !errors.Is(err, broken) {
			t.Error(err)
		}
		if err := b.Reached(ending, engine.CheckpointCaptured); !errors.Is(err, broken) {
			t.Errorf("the last one: %v", err)
		}
	})
}

// FuzzDescription: a description that is accepted names files of the directory alone, each once.
func FuzzDescription(f *testing.F) {
	f.Add([]byte(`{"version":1,"containers":[{"name":"a","file":"0.tar","process":{"env":{"A":"1"},"user":0}}]}`))
	f.Add([]byte(`{"version":1,"containers":[{"name":"a","file":"../0.tar"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		pod, err := decode(data)
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("it does not blame the description: %v", err)
			}
			return
		}
		seen := map[string]bool{}
		for _, c := range pod.Containers {
			if filepath.Base(c.File) != c.File || !filepath.IsLocal(c.File) || !strings.HasSuffix(c.File, ".tar") || seen[c.File] {
				t.Errorf("file %q", c.File)
			}
			seen[c.File] = true
		}
	})
}
