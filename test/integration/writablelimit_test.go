//go:build integration

package integration

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysquota"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	writableLimit = 8 << 20
	// firstProject is the default of runtime.first_project_id.
	firstProject = 1_500_000_000
)

// mountDisk mounts a new file system that a program makes, with project quotas, until the test ends.
func mountDisk(t *testing.T, mkfs string, args ...string) string {
	t.Helper()
	require.Root(t)
	program := require.Binary(t, mkfs)
	dir := t.TempDir()
	file, at := filepath.Join(dir, "disk"), filepath.Join(dir, "at")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 512<<20); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(program, append(args, "-q", file)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", mkfs, err, out)
	}
	out, err := exec.Command("mount", "-o", "loop,prjquota", file, at).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("mount: %w: %s", err, out)
	}
	require.ProjectQuota(t, err)
	t.Cleanup(func() {
		if out, err := exec.Command("umount", at).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return at
}

// TestWritableLimit: on a file system with project quotas each container's files are a project of their own, by which the kernel
// counts and limits them.
func TestWritableLimit(t *testing.T) {
	xfs := func(t *testing.T) string { return mountDisk(t, "mkfs.xfs") }
	for name, disk := range map[string]func(t *testing.T) string{
		"ext4": func(t *testing.T) string {
			return mountDisk(t, "mkfs.ext4", "-O", "project,quota", "-E", "quotatype=prjquota")
		},
		"xfs": xfs,
	} {
		t.Run(name, func(t *testing.T) { limitsOn(t, disk(t)) })
	}
	t.Run("copies", func(t *testing.T) { limitsOfCopies(t, xfs(t)) })
}

// limitsOfCopies: the kernel counts a copy, and its container may write as much as one over an overlay.
func limitsOfCopies(t *testing.T, disk string) {
	root := filepath.Join(disk, "root")
	b := harness.Start(t, harness.Options{
		Args:   []string{"--root", root},
		Config: fmt.Sprintf("[defaults]\nwritable_limit = %d\n[image]\nsnapshotter = \"native\"\n", writableLimit),
	})
	b.Root = root
	pods := map[string]harness.Pod{
		"plain": b.RunPod("plain", "exec sleep 100000"),
		"users": runPodWith(b, "users", "exec sleep 100000", inUsers(nil)),
	}
	for key, id := range projectsOf(t, root) {
		quota, err := sysquota.Of(disk, id)
		// The start of a container makes directories and files for its mounts.
		if left := quota.Limit - quota.Bytes; err != nil || left > writableLimit || left < writableLimit-64<<10 {
			t.Errorf("the quota of %s is %+v, want %d bytes beside the copy: %v", key, quota, writableLimit, err)
		}
	}
	for name, pod := range pods {
		if used := writableLayer(t, b, pod.Container); used.GetUsedBytes().GetValue() > 1<<20 {
			t.Errorf("%s: the writable layer of a container that has written nothing has %v", name, used)
		}
		b.ExecOut(pod.Container, "head -c 3145728 /dev/zero > /held")
		wantBounded(t, b, name, pod.Container, "/")
		// The daemon reads the quota again when the last figure is 15 seconds old.
		var used uint64
		b.Await("a figure of "+name+" with what was written", func() bool {
			used = writableLayer(t, b, pod.Container).GetUsedBytes().GetValue()
			return used > 1<<20
		})
		if used < 3<<20 || used > writableLimit {
			t.Errorf("%s: the writable layer has %d bytes, want 3 MiB", name, used)
		}
		b.RemovePod(pod.Sandbox)
	}
}

func limitsOn(t *testing.T, disk string) {
	// A project of another program, and the limit that a killed berth has left.
	foreign := filepath.Join(disk, "foreign")
	if err := os.Mkdir(foreign, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := sysquota.SetProject(foreign, firstProject); err != nil {
		t.Fatal(err)
	}
	if err := sysquota.SetLimit(disk, firstProject+1, 5<<20); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(disk, "root")
	b := harness.Start(t, harness.Options{
		Args:   []string{"--root", root},
		Config: fmt.Sprintf("[defaults]\nwritable_limit = %d\n[handlers.free]\nkind = \"builtin\"\nwritable_limit = 0\n", writableLimit),
	})
	b.Root = root
	const image = "docker.io/library/declares:1"
	b.ImportDeclaring(image, []string{"/data"})
	pods := map[string]harness.Pod{
		"plain":  runPodWith(b, "plain", "exec 3>/held; rm /held; head -c 3145728 /dev/zero >&3; exec sleep 100000", func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig) {}),
		"volume": runPodWith(b, "volume", "exec sleep 100000", ofImage(image, nil)),
		"users":  runPodWith(b, "users", "exec sleep 100000", inUsers(nil)),
		"free":   runFreePod(b),
	}
	for name, dir := range map[string]string{"plain": "/", "volume": "/data/", "users": "/"} {
		wantLimited(t, b, name, pods[name].Container, dir)
	}
	b.ExecOut(pods["free"].Container, "head -c 16777216 /dev/zero > /large")
	wantCounted(t, b, pods["plain"].Container)

	before := projectsOf(t, root)
	b.KillDaemon()
	b.StartDaemon()
	pods["later"] = b.RunPod("later", "exec sleep 100000")
	after := projectsOf(t, root)
	for key, id := range before {
		if after[key] != id {
			t.Errorf("the project of %s was %d and is %d after a restart", key, id, after[key])
		}
	}
	wantCounted(t, b, pods["plain"].Container)
	seen := map[uint32]string{0: "none", firstProject: "another program"}
	for key, id := range after {
		if seen[id] != "" {
			t.Errorf("%s has the project %d, as has %s", key, id, seen[id])
		}
		seen[id] = key
		limit := int64(writableLimit)
		if key == pods["free"].Container {
			limit = 0
		}
		if quota, err := sysquota.Of(disk, id); err != nil || quota.Limit != limit || quota.Inodes < 3 {
			t.Errorf("the quota of %s, project %d, is %+v, want a limit of %d: %v", key, id, quota, limit, err)
		}
	}
	if quota, err := sysquota.Of(disk, firstProject+1); err != nil || quota.Limit == 5<<20 {
		t.Errorf("the limit that a killed berth has left is still there: %+v, %v", quota, err)
	}
	for _, pod := range pods {
		b.RemovePod(pod.Sandbox)
	}
	for _, id := range slices.Collect(maps.Values(after)) {
		b.Await(fmt.Sprintf("the end of project %d", id), func() bool {
			quota, err := sysquota.Of(disk, id)
			return err == nil && quota == sysquota.Quota{}
		})
	}
}

// runFreePod runs a pod of the handler without a limit.
func runFreePod(b *harness.Berth) harness.Pod {
	b.T.Helper()
	config := b.Sandbox("free")
	answer, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: "free"})
	if err != nil {
		b.T.Fatal(err)
	}
	pod := harness.Pod{Config: config, Sandbox: answer.PodSandboxId}
	pod.Container = b.Create(pod.Sandbox, b.Container("c", "exec sleep 100000"), config)
	b.StartContainer(pod.Container)
	return pod
}

// wantLimited writes more than the limit to a directory of a container, and then removes it.
func wantLimited(t *testing.T, b *harness.Berth, name, container, dir string) {
	t.Helper()
	if size := b.ExecOut(container, "df -k / | tail -n 1 | awk '{print $2}'"); size != "8192" {
		t.Errorf("%s: the root file system has %s KiB, want 8192", name, size)
	}
	wantBounded(t, b, name, container, dir)
}

// wantBounded is wantLimited, whatever the size of the root file system is.
func wantBounded(t *testing.T, b *harness.Berth, name, container, dir string) {
	t.Helper()
	answer := b.Exec(container, "dd if=/dev/zero bs=65536 count=256 of="+dir+"large; code=$?; wc -c < "+dir+"large; rm "+dir+"large; exit $code")
	said := strings.ToLower(string(answer.Stderr))
	if answer.ExitCode == 0 || !strings.Contains(said, "quota") && !strings.Contains(said, "space") {
		t.Errorf("%s: 16 MiB in %s: code %d, %s bytes, %s", name, dir, answer.ExitCode, answer.Stdout, answer.Stderr)
	}
	files := b.Exec(container, "mkdir "+dir+"many; i=0; while [ $i -lt 5000 ] && true > "+dir+"many/$i; do i=$((i+1)); done; echo $i; rm -r "+dir+"many")
	if made, err := strconv.Atoi(strings.TrimSpace(string(files.Stdout))); err != nil || made < 4000 || made > 4096 {
		t.Errorf("%s: %d files in %s, want the limit of some 4096: %v", name, made, dir, err)
	}
	b.ExecOut(container, "echo x > "+dir+"small")
}

// wantCounted reads what a container uses, which holds 3 MiB in a file without a name: no walk finds those.
func wantCounted(t *testing.T, b *harness.Berth, container string) {
	t.Helper()
	layer := writableLayer(t, b, container)
	if used := layer.GetUsedBytes().GetValue(); used < 3<<20 || used > writableLimit || layer.GetInodesUsed().GetValue() < 4 {
		t.Errorf("the writable layer has %v, want 3 MiB and no more than the limit", layer)
	}
	info, err := b.Images.ImageFsInfo(b.Ctx(), &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	all := info.ContainerFilesystems[0]
	if used := all.UsedBytes.GetValue(); used < 19<<20 || used > 64<<20 || all.FsId.GetMountpoint() != info.ImageFilesystems[0].FsId.GetMountpoint() {
		t.Errorf("all containers have %v, want 3 and 16 MiB and a little more", all)
	}
}

func writableLayer(t *testing.T, b *harness.Berth, container string) *runtimeapi.FilesystemUsage {
	t.Helper()
	answer, err := b.Runtime.ContainerStats(b.Ctx(), &runtimeapi.ContainerStatsRequest{ContainerId: container})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetStats().GetWritableLayer()
}

// projectsOf returns the projects of all root filesystems by their keys.
func projectsOf(t *testing.T, root string) map[string]uint32 {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(root, "images", "containers", "*"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no root filesystem: %v", err)
	}
	all := map[string]uint32{}
	for _, dir := range dirs {
		project, err := sysquota.ProjectOf(dir)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(dir)] = project.ID
	}
	return all
}

// TestWritableLimitWithoutQuotas: pods whose limit cannot hold do not start, and berth says why.
func TestWritableLimitWithoutQuotas(t *testing.T) {
	require.Root(t)
	disk := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=64m", "disk", disk).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", disk).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	b := harness.Start(t, harness.Options{
		NoImages: true, Args: []string{"--root", filepath.Join(disk, "root")},
		Config: fmt.Sprintf("[handlers.limited]\nkind = \"builtin\"\nwritable_limit = %d\n", writableLimit),
	})
	const why = "handlers.limited.writable_limit of the configuration is 8388608, and berth cannot limit what containers write: the file system of "
	_, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: b.Sandbox("limited"), RuntimeHandler: "limited"})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(fmt.Sprint(err), why) {
		t.Errorf("a pod with a limit: %v", err)
	}
	if info := b.MustCLI("info"); !strings.Contains(strings.Join(strings.Fields(info), " "), why) { // it is printed in lines
		t.Errorf("berth info does not say that the limit cannot hold: %s", info)
	}
	b.RunSandbox(b.Sandbox("other"))
}
