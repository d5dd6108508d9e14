//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const databaseImage = "docker.io/library/database:1"

// ofImage sets the image of a container.
func ofImage(name string, change podChange) podChange {
	return func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		container.Image = &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: name}
		if change != nil {
			change(config, container)
		}
	}
}

// volumeDirs are the directories of image volumes on disk.
func volumeDirs(b *harness.Berth) []string {
	b.T.Helper()
	found, err := filepath.Glob(filepath.Join(b.Root, "images", "containers", "*", "volumes"))
	if err != nil {
		b.T.Fatal(err)
	}
	return found
}

// TestImageDefinedVolumes: paths that an image declares as volumes.
func TestImageDefinedVolumes(t *testing.T) {
	b := harness.Start(t, harness.Options{Config: "[log]\n"})
	b.ImportDeclaring(databaseImage, []string{"/data", "var/run/lock/", "/empty", "/", "/proc/x", "/sys/fs/cgroup"},
		imagetest.File{Path: "/data", Dir: true, Mode: 0o750, UID: 70, GID: 70},
		imagetest.File{Path: "/data/seed", Content: []byte("seed\n"), UID: 70, GID: 70, Mode: 0o640},
		imagetest.File{Path: "/data/second", Hardlink: "/data/seed", UID: 70, GID: 70, Mode: 0o640},
		imagetest.File{Path: "/data/out", Symlink: "/etc/passwd"},
		imagetest.File{Path: "/var/run", Symlink: "/run"},
		imagetest.File{Path: "/run/lock/here", Content: []byte("lock\n")},
	)
	for _, c := range []struct {
		name string
		test func(*testing.T, *harness.Berth)
	}{
		{"a container's own, with what the image has", declaredCopied},
		{"a pod's mount wins", declaredMounted},
		{"in a user namespace", declaredForUsers},
		{"over crashes", declaredSurvive},
		{"killed while they are made", declaredKilled},
		{"of a container that fails", declaredRefused},
		{"ignored", declaredIgnored},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer func(parent testing.TB) { b.T = parent }(b.T)
			b.T = t
			c.test(t, b)
			if left := volumeDirs(b); len(left) != 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func readOnly(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
	container.Linux.SecurityContext.ReadonlyRootfs = true
}

func declaredCopied(t *testing.T, b *harness.Berth) {
	pod := runPodWith(b, "declared", "sleep 1000", ofImage(databaseImage, readOnly))
	defer b.RemovePod(pod.Sandbox)
	wantOut(t, b, pod.Container, [][2]string{
		{"stat -c %u:%g,%a /data /data/seed; stat -c %h /data/seed", "70:70,750 70:70,640 2"},
		{"cat /data/seed /var/run/lock/here", "seed lock"},
		{"readlink /data/out", "/etc/passwd"},
		{"stat -c %u:%g,%a /empty", "0:0,755"},
		{"touch /data/new /run/lock/new /empty/new && echo written", "written"},
		{"touch /new 2>&1", "touch: /new: Read-only file system"},
		{"stat -f -c %T /data | grep -c overlay", "0"},
		{"test -e /proc/self/stat && echo yes", "yes"}, // no image can replace what the runtime mounts
	})
	// Another container of the image, in the same pod, has its own.
	other := b.Container("other", "sleep 1000")
	ofImage(databaseImage, nil)(pod.Config, other)
	second := b.Create(pod.Sandbox, other, pod.Config)
	b.StartContainer(second)
	wantOut(t, b, second, [][2]string{{"echo /data/*", "/data/out /data/second /data/seed"}, {"rm /data/seed && echo gone", "gone"}})
	wantOut(t, b, pod.Container, [][2]string{{"cat /data/seed", "seed"}})
	// As with containerd, the status has the mounts of the request only.
	if mounts := b.Status(pod.Container).Mounts; len(mounts) != 0 {
		t.Errorf("the status has %v", mounts)
	}
	if dirs := volumeDirs(b); len(dirs) != 2 {
		t.Errorf("two containers have %q", dirs)
	}
	if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: second}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Runtime.RemoveContainer(b.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: second}); err != nil {
		t.Fatal(err)
	}
	if dirs := volumeDirs(b); len(dirs) != 1 || !strings.Contains(dirs[0], pod.Container) {
		t.Errorf("after one was removed: %q", dirs)
	}
}

// declaredMounted: a mount of the pod at a volume's path, or above it, wins, by any name of the
// path.
func declaredMounted(t *testing.T, b *harness.Berth) {
	own := t.TempDir()
	for _, name := range []string{"data/kept", "lock/kept", "below/kept"} {
		if err := os.MkdirAll(filepath.Join(own, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	pod := runPodWith(b, "declared-mounted", "sleep 1000", ofImage(databaseImage, func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		container.Mounts = []*runtimeapi.Mount{
			{HostPath: filepath.Join(own, "data"), ContainerPath: "/data"},
			{HostPath: own, ContainerPath: "/run"},
			{HostPath: filepath.Join(own, "below"), ContainerPath: "/empty/below"},
		}
	}))
	defer b.RemovePod(pod.Sandbox)
	wantOut(t, b, pod.Container, [][2]string{
		{"echo /data/* /run/lock/* /empty/* /empty/below/*", "/data/kept /run/lock/kept /empty/below /empty/below/kept"},
		{"echo mine > /data/file; echo mine > /var/run/lock/file; echo mine > /empty/file", ""},
	})
	for name, want := range map[string]string{"data/file": "mine\n", "lock/file": "mine\n", "file": ""} {
		if got, _ := os.ReadFile(filepath.Join(own, name)); string(got) != want {
			t.Errorf("the host's %s has %q, want %q", name, got, want)
		}
	}
}

func declaredForUsers(t *testing.T, b *harness.Berth) {
	pod := runPodWith(b, "declared-users", "sleep 1000", inUsers(ofImage(databaseImage, func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		readOnly(config, container)
		container.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 70}
		container.Linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{Value: 70}
	})))
	defer b.RemovePod(pod.Sandbox)
	wantOut(t, b, pod.Container, [][2]string{
		{"stat -c %u:%g,%a /data /data/seed /empty", "70:70,750 70:70,640 0:0,755"},
		{"echo x >> /data/seed && cat /data/second", "seed x"},
		{"touch /empty/new 2>&1", "touch: /empty/new: Permission denied"},
	})
	dirs := volumeDirs(b)
	if len(dirs) != 1 {
		t.Fatalf("volumes %q", dirs)
	}
	files, err := filepath.Glob(filepath.Join(dirs[0], "*", "seed"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%q, %v", files, err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(files[0], &st); err != nil || st.Uid != usersRoot+70 {
		t.Errorf("on disk it belongs to %d, %v", st.Uid, err)
	}
}

// declaredSurvive: the kill of berth's processes changes nothing, and their successors remove the
// volumes.
func declaredSurvive(t *testing.T, b *harness.Berth) {
	pod := runPodWith(b, "declared-crash", "sleep 1000", ofImage(databaseImage, readOnly))
	wantOut(t, b, pod.Container, [][2]string{{"echo kept > /data/new", ""}})
	harness.Kill(t, b.SupervisorPid())
	b.KillDaemon()
	b.StartDaemon()
	wantOut(t, b, pod.Container, [][2]string{{"cat /data/new /data/seed", "kept seed"}, {"echo more > /data/more && echo written", "written"}})
	b.RemovePod(pod.Sandbox)
}

// declaredKilled: the daemon is killed while it copies a volume. The copy is removed with the
// container that was never created.
func declaredKilled(t *testing.T, b *harness.Berth) {
	const large = "docker.io/library/large:1"
	files := make([]imagetest.File, 2000)
	for i := range files {
		files[i] = imagetest.File{Path: fmt.Sprint("/many/", i), Content: []byte("x")}
	}
	b.ImportDeclaring(large, []string{"/many"}, files...)
	config := b.Sandbox("declared-killed")
	sandbox := b.RunSandbox(config)
	container := b.Container("c", "true")
	ofImage(large, nil)(config, container)
	ctx, answered := b.Ctx(), make(chan struct{})
	go func() {
		defer close(answered)
		// It fails, or it was faster than the kill.
		_, _ = b.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: container, SandboxConfig: config})
	}()
	b.Await("the first file", func() bool {
		copied, err := filepath.Glob(filepath.Join(b.Root, "images", "containers", "*", "volumes", "0", "*"))
		return err == nil && len(copied) > 0
	})
	b.KillDaemon()
	<-answered
	b.StartDaemon()
	b.RemovePod(sandbox)
}

// declaredRefused: nothing is left of the volumes of a container that was refused after their
// creation, or whose volumes cannot exist.
func declaredRefused(t *testing.T, b *harness.Berth) {
	const wrong = "docker.io/library/wrong:1"
	b.ImportDeclaring(wrong, []string{"/data", "/etc/passwd"}, imagetest.File{Path: "/data/seed", Content: []byte("seed")})
	const loop = "docker.io/library/loop:1"
	b.ImportDeclaring(loop, []string{"/data", "/loop/x"}, imagetest.File{Path: "/loop", Symlink: "loop"})
	config := b.Sandbox("declared-refused")
	sandbox := b.RunSandbox(config)
	defer b.RemovePod(sandbox)
	for name, words := range map[string][]string{wrong: {`"/etc/passwd"`, "not a directory"}, loop: {`"/loop/x"`}} {
		container := b.Container("c", "true")
		ofImage(name, nil)(config, container)
		_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: container, SandboxConfig: config})
		checkRefusal(t, err, codes.InvalidArgument, words)
	}
	late := b.Container("late", "true")
	ofImage(databaseImage, nil)(config, late)
	late.Mounts = []*runtimeapi.Mount{{HostPath: config.LogDirectory, ContainerPath: "/bin/busybox"}} // a directory on a file
	if _, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: late, SandboxConfig: config}); err == nil {
		t.Error("a directory was mounted on a file")
	}
}

// declaredIgnored: an operator may leave the paths to the root filesystem.
func declaredIgnored(t *testing.T, b *harness.Berth) {
	f := &fields{Berth: b}
	f.reload(t, "[runtime]\nimage_volumes = \"ignore\"\n", "runtime.image_volumes")
	pod := runPodWith(b, "declared-ignored", "sleep 1000", ofImage(databaseImage, readOnly))
	wantOut(t, b, pod.Container, [][2]string{
		{"cat /data/seed", "seed"},
		{"touch /data/new 2>&1", "touch: /data/new: Read-only file system"},
	})
	b.RemovePod(pod.Sandbox)
	f.reload(t, "[log]\n", "runtime.image_volumes")
	pod = runPodWith(b, "declared-again", "sleep 1000", ofImage(databaseImage, readOnly))
	wantOut(t, b, pod.Container, [][2]string{{"touch /data/new && echo written", "written"}})
	b.RemovePod(pod.Sandbox)
}
