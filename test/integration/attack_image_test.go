//go:build integration

package integration

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// systemPaths are the paths that the runtime mounts on, writes to or creates in each container.
var systemPaths = []string{
	"/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/null", "/dev/console", "/dev/fd", "/dev/ptmx", "/proc", "/proc/self", "/proc/sys", "/sys", "/sys/fs/cgroup",
	"/etc", "/etc/mtab", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/passwd", "/etc/group", "/run", "/data",
}

// hidePaths requests masked and read-only paths, as a kubelet does.
func hidePaths(config *runtimeapi.ContainerConfig) {
	security := config.Linux.SecurityContext
	security.MaskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	security.ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// soundSystem checks what a started container sees: file systems of the right types, masked files,
// settings that cannot be written.
const soundSystem = `[ "$(stat -f -c %T /proc)" = proc ] || echo "/proc is $(stat -f -c %T /proc)"
[ "$(stat -f -c %t /sys)" = 62656572 ] || echo "/sys is $(stat -f -c %t /sys)"
while read -r _ _ _ root at _; do
	case $at in /proc*|/sys*) case $root in *attacker-data*) echo "$root is on $at";; esac;; esac
done </proc/self/mountinfo
for f in /proc/kcore /proc/keys /proc/timer_list; do
	[ ! -e $f ] || [ "$(stat -c %t:%T $f)" = 1:3 ] || echo "$f is $(stat -c %F $f)"
done
[ -z "$(ls /sys/firmware 2>&-)" ] || echo "/sys/firmware is open"
for f in /proc/sys/kernel/domainname /proc/sysrq-trigger; do
	(: >>$f) 2>&- && echo "$f can be written"
done
echo end`

const soundDevices = `[ "$(stat -f -c %t /dev)" = 1021994 ] || echo "/dev is $(stat -f -c %t /dev)"
[ "$(stat -c %t:%T /dev/null)" = 1:3 ] || echo "/dev/null is $(stat -c %t:%T /dev/null)"
`

// hostileTrees are what an image may have at such a path.
func hostileTrees(outside string) map[string]func(path string) []imagetest.File {
	up := strings.Repeat("../", 20)
	link := func(target string) func(string) []imagetest.File {
		return func(path string) []imagetest.File { return []imagetest.File{{Path: path, Symlink: target}} }
	}
	return map[string]func(string) []imagetest.File{
		"a link to the host":          link(outside),
		"a relative link to the host": link(up + outside[1:]),
		"a link into /proc":           link("/proc/self/root" + outside),
		"a link to what is not there": link(filepath.Join(outside, "absent", "deep")),
		"a link to itself": func(path string) []imagetest.File {
			return []imagetest.File{{Path: path, Symlink: filepath.Base(path)}}
		},
		"a FIFO": func(path string) []imagetest.File { return []imagetest.File{{Path: path, Device: 'p', Mode: 0o666}} },
		"a file": func(path string) []imagetest.File {
			return []imagetest.File{{Path: path, Content: []byte("x"), Mode: 0o777}}
		},
		"a device": func(path string) []imagetest.File {
			return []imagetest.File{{Path: path, Device: 'c', Major: 1, Minor: 5, Mode: 0o666}}
		},
		"a directory": func(path string) []imagetest.File {
			return []imagetest.File{{Path: path + "/inner", Dir: true, Mode: 0o777}}
		},
	}
}

// treeOf returns all that is visible of a directory, for comparison.
func treeOf(t *testing.T, dir string) string {
	t.Helper()
	var tree strings.Builder
	if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		var data []byte
		if info.Mode().IsRegular() {
			data, err = os.ReadFile(path)
		}
		fmt.Fprintf(&tree, "%s %s %s %q\n", strings.TrimPrefix(path, dir), info.Mode(), info.ModTime().Format(time.RFC3339Nano), data)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return tree.String()
}

// outsideOf is a directory of the host that nothing may touch, with names that a runtime looks for.
func outsideOf(t *testing.T, b *harness.Berth) (dir, tree string) {
	t.Helper()
	dir = filepath.Join(b.Dir, "outside")
	for _, sub := range []string{"pts", "shm", "sys", "self"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"null", "mtab", "hosts", "hostname", "resolv.conf", "passwd", "group"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("of the host\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir, treeOf(t, dir)
}

// imagesInCI is how many images there are for each that TestSystemPathsOfImages runs.
const imagesInCI = 4

// pathsSeed repeats the choice of a run of TestSystemPathsOfImages.
const pathsSeed = "BERTH_PATHS_SEED"

// TestSystemPathsOfImages: an image may have anything at the paths where the runtime mounts and
// writes. Its container is refused, or sees what every container sees, and nothing on the host
// changes. It runs a random part of the images, and `make e2e` runs all.
func TestSystemPathsOfImages(t *testing.T) {
	seed := harness.Seed(t, pathsSeed)
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("%s=%d repeats this run", pathsSeed, seed)
	chosen := rand.New(rand.NewPCG(seed, 0))
	systemPathsOfImages(t, func() bool { return chosen.IntN(imagesInCI) == 0 })
}

// systemPathsOfImages runs a container of each image that choose wants, which is called once for each image, in
// the same order.
func systemPathsOfImages(t *testing.T, choose func() bool) {
	x := newTrial(t, harness.Options{})
	outside, before := outsideOf(t, x.Berth)
	programs := imagetest.Layer{{Path: "/bin/busybox", Source: require.Binary(t, "busybox"), Mode: 0o755}}
	for _, applet := range []string{"sh", "stat", "ls"} {
		programs = append(programs, imagetest.File{Path: "/bin/" + applet, Symlink: "busybox"})
	}
	// While this image exists, the store keeps the layer that all images share.
	const shared = "docker.io/library/programs:1"
	x.importImage(t, imagetest.Spec{Name: shared, Layers: []imagetest.Layer{programs}})
	started, images := 0, 0
	trees := hostileTrees(outside)
	for _, what := range slices.Sorted(maps.Keys(trees)) {
		for _, path := range systemPaths {
			if !choose() {
				continue
			}
			images++
			ref := fmt.Sprintf("docker.io/library/hostile:%d", images)
			t.Run(path+" is "+what, func(t *testing.T) {
				x.importImage(t, imagetest.Spec{Name: ref, Env: []string{"PATH=/bin"}, Layers: []imagetest.Layer{programs, trees[what](path)}})
				if x.runHostile(t, ref) {
					started++
				}
				x.removeImage(t, ref)
				if after := treeOf(t, outside); after != before {
					t.Fatalf("the host has\n%s\nit had\n%s", after, before)
				}
			})
		}
	}
	x.removeImage(t, shared)
	x.nothingLeft(t)
	if images == 0 || started < images/2 {
		t.Errorf("%d of %d containers started", started, images)
	}
}

func (x *trial) importImage(t *testing.T, spec imagetest.Spec) {
	t.Helper()
	if _, err := x.Import(bytes.NewReader(archiveOf(t, spec))); err != nil {
		t.Fatal(err)
	}
}

func (x *trial) removeImage(t *testing.T, ref string) {
	t.Helper()
	if _, err := x.Images.RemoveImage(x.Ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Error(err)
	}
}

// runHostile runs a container of a hostile image, and reports whether it started.
func (x *trial) runHostile(t *testing.T, ref string) (started bool) {
	t.Helper()
	config := x.Container("hostile", soundDevices+soundSystem)
	config.Image.Image = ref
	hidePaths(config)
	data := filepath.Join(x.Dir, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		t.Fatal(err)
	}
	config.Mounts = []*runtimeapi.Mount{{HostPath: data, ContainerPath: "/data/of/volume"}}
	begun := time.Now()
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
		// The error must say what is wrong with the image.
		if code := status.Code(err); code != codes.InvalidArgument {
			t.Errorf("refused after %s with %s: %v", time.Since(begun).Round(time.Millisecond), code, err)
		} else {
			t.Log(err)
		}
		return false
	}
	exit := x.AwaitExit(made.ContainerId)
	lines, err := harness.LogLines(exit.LogPath)
	if got := strings.Join(lines, "; "); err != nil || got != "end" {
		t.Errorf("code %d, %v: %s", exit.ExitCode, err, got)
	}
	if err := os.Remove(exit.LogPath); err != nil {
		t.Error(err)
	}
	return true
}

// TestLabelsOfAnImageStayTheImages: labels of an image become no label or annotation of a
// container. They do not change how the container runs or where its output goes.
func TestLabelsOfAnImageStayTheImages(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	trap := filepath.Join(b.Dir, "trap")
	hostile := map[string]string{
		"containerd.io/restart.loguri": "binary:///bin/touch?" + trap, "containerd.io/restart.status": "running", "run.berth.volumes": "/declared",
		"io.kubernetes.container.logpath": trap, "org.systemd.property.ExecStopPost": "'/bin/touch " + trap + "'", "cdi.k8s.io/x": "vendor.com/class=all",
	}
	const ref = "docker.io/library/labels:1"
	if _, err := b.Import(bytes.NewReader(archiveOf(t, imagetest.Spec{
		Name: ref, Labels: hostile, Annotations: hostile, Env: []string{"PATH=/bin"},
		Files: []imagetest.File{{Path: "/bin/sh", Source: require.Binary(t, "busybox"), Mode: 0o755}},
	}))); err != nil {
		t.Fatal(err)
	}
	pod := runPodWith(b, "labels", "echo line; read -r _ </absent; exit 3", func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		container.Image.Image = ref
	})
	exit := b.AwaitExit(pod.Container)
	lines, err := harness.LogLines(pod.LogFile)
	if err != nil || exit.ExitCode != 3 || !slices.Contains(lines, "line") { // the shell also writes to stderr, a stream of its own
		t.Errorf("code %d, output %q, %v", exit.ExitCode, lines, err)
	}
	if diff := cmp.Diff(b.Container("c", "").Labels, exit.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if len(exit.Annotations) > 0 || len(exit.Mounts) > 0 {
		t.Errorf("annotations %v, mounts %v", exit.Annotations, exit.Mounts)
	}
	b.RemovePod(pod.Sandbox)
	if _, err := os.Lstat(trap); err == nil {
		t.Error("a label of the image was obeyed")
	}
}
