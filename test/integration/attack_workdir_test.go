//go:build integration

package integration

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// climb walks up from the working directory, and prints whether the end is the root, and the
// descriptors of the process.
const climb = `cd -P . || exit 3
while [ "$(stat -c %d:%i .)" != "$(stat -c %d:%i ..)" ]; do cd -P ..; done
[ "$(stat -c %d:%i .)" = "$(stat -c %d:%i /)" ] && echo inside || echo "outside: $(ls)"`

// openOfSelf lists the descriptors of the shell, which waits for the listing.
const openOfSelf = `ls /proc/$$/fd; :`

// waysOut are working directories that lead to an open file or to the root of a process, by paths
// of /proc.
func waysOut() []string {
	dirs := []string{
		"/proc/self/cwd", "/proc/self/root", "/proc/1/root", "/proc/1/cwd", "/proc/thread-self/root", "/proc/self/task/1/root",
		"/link-to-descriptor", "/link-to-root/proc/self/fd/7",
	}
	for n := range 21 {
		dirs = append(dirs, fmt.Sprintf("/proc/self/fd/%d", n))
	}
	for _, n := range []int{3, 7, 8, 9} {
		dirs = append(dirs, fmt.Sprintf("/proc/self/fd/%d/../../../..", n), fmt.Sprintf("/proc/1/fd/%d", n), fmt.Sprintf("/proc/thread-self/fd/%d", n))
	}
	return dirs
}

// importLinks imports an image with links to descriptors, and a working directory.
func importLinks(t *testing.T, b *harness.Berth, name, workingDir string) {
	t.Helper()
	busybox := require.Binary(t, "busybox")
	spec := imagetest.Spec{Name: name, WorkingDir: workingDir, Env: []string{"PATH=/bin"}, Layers: []imagetest.Layer{{
		{Path: "/bin/busybox", Source: busybox, Mode: 0o755},
		{Path: "/link-to-descriptor", Symlink: "/proc/self/fd/7"},
		{Path: "/link-to-root", Symlink: "/proc/self/root"},
	}}}
	for _, applet := range []string{"sh", "stat", "ls", "ln", "rm", "mkdir", "sleep"} {
		spec.Layers[0] = append(spec.Layers[0], imagetest.File{Path: "/bin/" + applet, Symlink: "busybox"})
	}
	if _, err := b.Import(bytes.NewReader(archiveOf(t, spec))); err != nil {
		t.Fatal(err)
	}
}

// TestWorkingDirectoryIsInside: a request or an image may name any working directory. The container
// does not start, or it starts below its own root and with three descriptors.
func TestWorkingDirectoryIsInside(t *testing.T) {
	x := newTrial(t, harness.Options{})
	started, refused := 0, 0
	run := func(t *testing.T, image, dir string) {
		t.Helper()
		config := x.Container("workdir", climb+"; "+openOfSelf)
		config.WorkingDir, config.Image.Image = dir, image
		made, err := x.Runtime.CreateContainer(x.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: x.pod.Sandbox, Config: config, SandboxConfig: x.pod.Config})
		if err == nil {
			defer func() {
				if _, err := x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: made.ContainerId}); err != nil {
					t.Error(err)
				}
			}()
			_, err = x.Runtime.StartContainer(x.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: made.ContainerId})
		}
		if err != nil {
			refused++
			checkRefusal(t, err, codes.InvalidArgument, nil)
			return
		}
		started++
		status := x.AwaitExit(made.ContainerId)
		lines, err := harness.LogLines(status.LogPath)
		if err != nil {
			t.Error(err)
		}
		if got := strings.Join(lines, " "); got != "inside 0 1 2" {
			t.Errorf("it says %q (code %d), want that it is inside, and three descriptors", got, status.ExitCode)
		}
		if err := os.Remove(status.LogPath); err != nil {
			t.Error(err)
		}
	}
	const plain = "docker.io/library/links:plain"
	importLinks(t, x.Berth, plain, "")
	for _, dir := range append(waysOut(), "/", "/made/here") {
		t.Run("request "+dir, func(t *testing.T) { run(t, plain, dir) })
	}
	for i, dir := range waysOut() {
		image := fmt.Sprintf("docker.io/library/links:%d", i)
		t.Run("image "+dir, func(t *testing.T) {
			importLinks(t, x.Berth, image, dir)
			run(t, image, "")
		})
	}
	if started == 0 || refused == 0 {
		t.Errorf("%d containers started, %d were refused: want both", started, refused)
	}
}

// TestWorkingDirectoryOfAnExec: a container replaces its working directory by a link to a
// descriptor. The next exec does not start outside of the container's root.
func TestWorkingDirectoryOfAnExec(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for name, change := range map[string]podChange{"exec": func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig) {}, "exec-users": inUsers(nil)} {
		if name == "exec-users" && b.Refuses(translate.UserNamespaces) != nil {
			continue
		}
		pod := runPodWith(b, name, "exec sleep 100000", func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
			container.WorkingDir = "/work"
			change(config, container)
		})
		command := func(script string) (*runtimeapi.ExecSyncResponse, error) {
			return b.Runtime.ExecSync(b.Ctx(), &runtimeapi.ExecSyncRequest{ContainerId: pod.Container, Cmd: []string{"/bin/sh", "-c", script}, Timeout: 30})
		}
		answer, err := command(climb + "; " + openOfSelf)
		if err != nil {
			t.Fatal(err)
		}
		want(t, name, strings.Join(strings.Fields(string(answer.Stdout)), " "), "inside 0 1 2")
		// The init has the container's root, too. The next exec finds what was changed there.
		work := fmt.Sprintf("/proc/%d/root/work", initOf(t, b, pod.Container))
		for _, dir := range waysOut() {
			if err := os.RemoveAll(work); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(dir, work); err != nil {
				t.Fatal(err)
			}
			answer, err := command(climb + "; " + openOfSelf)
			if err != nil {
				continue // it did not begin
			}
			if got := strings.Join(strings.Fields(string(answer.Stdout)), " "); got != "inside 0 1 2" {
				t.Errorf("%s: a link to %s: %q, want that it is inside, and three descriptors", name, dir, got)
			}
		}
		b.RemovePod(pod.Sandbox)
	}
}
