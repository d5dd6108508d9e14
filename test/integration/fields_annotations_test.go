//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestFieldsOfAnnotations: annotations of CRI-O that an operator allows have an effect. The log
// names those that are not allowed or not supported.
func TestFieldsOfAnnotations(t *testing.T) {
	f := newFields(t, harness.Options{Config: "[log]\n"}, nil)
	const unified, logs = "unified-cgroup.crio.io", "link-logs.crio.io"
	annotated := func(c *runtimeapi.PodSandboxConfig) {
		c.Annotations = map[string]string{unified + "/limited": "memory.high=67108864;pids.max=33", logs: "logs", "umask.crio.io": "077"}
	}
	volume := func(c containerConfig) {
		dir := filepath.Join(f.Dir, "pods", f.config.Metadata.Uid, "volumes/kubernetes.io~empty-dir/logs")
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{ContainerPath: "/logs", HostPath: dir})
	}
	limited := func(c containerConfig) { c.Metadata.Name, c.LogPath = "limited", "limited/0.log" }

	f.try(t, "not allowed", func(t *testing.T) {
		f.pod(annotated)
		for _, key := range []string{unified + "/limited", logs, "umask.crio.io"} {
			if log := f.LogTail(); !strings.Contains(log, key) || !strings.Contains(log, "ignoring annotations") {
				t.Errorf("no warning names %s: %s", key, log)
			}
		}
		want(t, "the volume", f.says(t, "echo x >/logs/own && ls /logs", func(c containerConfig) {
			limited(c)
			volume(c)
		}), "own")
	})
	f.reload(t, "[runtime]\nallowed_annotations = [\""+unified+"\", \""+logs+"\"]\n", "runtime.allowed_annotations")
	f.try(t, logs, func(t *testing.T) {
		f.pod(annotated)
		f.says(t, "echo logged", func(c containerConfig) { c.Metadata.Name, c.LogPath = "first", "first/0.log" })
		got := f.says(t, "ls /logs; cut -d' ' -f2- /logs/first/0.log; echo x 2>/dev/null >/logs/new || echo refused", volume)
		if names, rest, _ := strings.Cut(got, " stdout F logged"); !strings.Contains(names, "first") || rest != " refused" {
			t.Errorf("the container sees %q", got)
		}
		if entries, err := os.ReadDir(f.config.LogDirectory); err != nil || len(entries) != 2 {
			t.Errorf("the log directory has %v, %v", entries, err)
		}
	})
	f.try(t, unified, func(t *testing.T) {
		f.Needs(t, translate.Unified)
		config := f.Container("limited", "cat /sys/fs/cgroup/memory.high /sys/fs/cgroup/pids.max")
		if !onV2() {
			_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
			checkRefusal(t, err, codes.Unimplemented, []string{"unified", "memory.high", "cgroup v2"})
			return
		}
		want(t, "its limits", f.says(t, config.Command[2], limited), "67108864 33")
		if got := f.says(t, "cat /sys/fs/cgroup/pids.max", nil); got == "33" {
			t.Error("another container has them, too")
		}
	})
}
