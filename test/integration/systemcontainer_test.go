//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/systemd"
)

// systemdImage is Debian with systemd.
const systemdImage = "localhost/berth/systemd-test:1"

// TestSystemContainer: systemd boots as process 1 of a container, with cgroups that it manages
// itself, and file systems in memory. It halts on its stop signal. The next container continues
// with its files.
func TestSystemContainer(t *testing.T) {
	b := harness.Start(t, harness.Options{NoImages: true})
	b.Needs(t, translate.OwnRootfs)
	archive, err := os.Open(systemd.Archive(t, systemdImage))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if _, err := b.Import(archive); err != nil {
		t.Fatal(err)
	}
	storage := filepath.Join(t.TempDir(), "storage")
	for run := range uint32(2) {
		pod := privilegedPod(b, "machine", run)
		sandbox, log := b.RunSandbox(pod), fmt.Sprintf("console-%d.log", run)
		config := &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "machine"}, Image: &runtimeapi.ImageSpec{Image: systemdImage}, LogPath: log, Tty: true,
			StopSignal: runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3, Envs: []*runtimeapi.KeyValue{{Key: "container", Value: []byte("oci")}},
			Annotations: map[string]string{
				request.AnnotationTmpfs: "/run,/tmp", request.AnnotationVolumes: "/var", request.AnnotationStorage: storage,
				request.AnnotationCgroupns: "private",
			},
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				Privileged: true, NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			}},
		}
		id := b.Create(sandbox, config, pod)
		b.StartContainer(id)
		console := filepath.Join(pod.LogDirectory, log)
		b.Await("systemd", func() bool {
			lines, err := harness.LogLines(console)
			return err == nil && strings.Contains(strings.Join(lines, "\n"), "Multi-User System")
		})
		for script, want := range map[string]string{
			"cat /proc/1/comm":                         "systemd",
			"hostname":                                 "machine",
			"findmnt -n -o FSTYPE /run":                "tmpfs",
			"findmnt -n -o FSTYPE /tmp":                "tmpfs",
			"stat -f -c %T / | sed s/fs$//":            "overlay",
			"systemd-run -q --wait true 2>&1; echo $?": "0",
		} {
			if got := b.ExecOut(id, script); got != want {
				t.Errorf("%s: %q, want %q", script, got, want)
			}
		}
		// A node has a container runtime of its own, whose root filesystems are overlays.
		b.ExecOut(id, "mkdir -p /var/o/l /var/o/u /var/o/w /var/o/m && mount -t overlay overlay -o lowerdir=/var/o/l,upperdir=/var/o/u,workdir=/var/o/w /var/o/m && touch /var/o/m/x && umount /var/o/m")
		if got := b.ExecOut(id, "echo run >> /etc/runs; echo run >> /var/lib/runs; cat /etc/runs /var/lib/runs | wc -l"); got != string(rune('2'+2*run)) {
			t.Errorf("run %d has %s lines", run, got)
		}
		stopped(t, b, id, console)
		b.RemovePod(sandbox)
	}
}

// stopped stops a machine, which must halt by itself long before the kill.
func stopped(t *testing.T, b *harness.Berth, id, console string) {
	t.Helper()
	grace := require.Patience(60 * time.Second)
	begun := time.Now()
	if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: int64(grace.Seconds())}); err != nil {
		t.Fatal(err)
	}
	if ended := b.AwaitExit(id); ended.ExitCode == 137 {
		t.Errorf("it was killed after %s", time.Since(begun))
	}
	lines, err := harness.LogLines(console)
	if err != nil || !strings.Contains(strings.Join(lines, "\n"), "Reached target") {
		t.Errorf("the console: %v", err)
	}
	t.Logf("it halted after %s", time.Since(begun).Round(time.Millisecond))
}
