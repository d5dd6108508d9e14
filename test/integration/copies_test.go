//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/test/harness"
)

// overlayDir mounts an overlay, which cannot hold the directories of another one, until the test ends.
func overlayDir(t *testing.T) string {
	t.Helper()
	require.Root(t)
	dir := t.TempDir()
	for _, name := range []string{"lower", "upper", "work", "at"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	at := filepath.Join(dir, "at")
	overlay := sysmount.Overlay{LowerRoot: dir, Lower: []string{"lower"}, Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work")}
	if err := sysmount.MountOverlay(overlay, at); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sysmount.Unmount(at); err != nil {
			t.Error(err)
		}
	})
	return at
}

// TestPodsOfCopies: pods run where the image store cannot hold overlays. What is left of a copy when the daemon is killed is used by no container.
func TestPodsOfCopies(t *testing.T) {
	root := filepath.Join(overlayDir(t), "root")
	b := harness.Start(t, harness.Options{Args: []string{"--root", root}, Config: "[image]\nsnapshotter = \"auto\"\n"})
	b.Root = root
	if info := strings.Join(strings.Fields(b.MustCLI("info")), " "); !strings.Contains(info, "cannot hold overlays") {
		t.Errorf("berth info does not say that root filesystems are copies: %s", info)
	}
	const large = "docker.io/library/large:1"
	files := []imagetest.File{{Path: "/suid", Mode: 0o4755, Content: []byte("x")}}
	for i := range 500 {
		files = append(files, imagetest.File{Path: fmt.Sprint("/many/", i), Content: []byte("x")})
	}
	b.ImportDeclaring(large, nil, files...)
	pod := runPodWith(b, "copied", "echo 1 > /many/0; exec sleep 100000", func(config *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
		ofImage(large, nil)(config, c)
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{ContainerPath: "/volume", Readonly: true, Image: &runtimeapi.ImageSpec{Image: large}})
	})
	const look = "ls /many | wc -l; cat /many/0 /volume/many/0; stat -c %a /suid; touch /volume/x 2>&1"
	const want = "500\n1\nx4755\ntouch: /volume/x: Read-only file system\n"
	if answer := b.Exec(pod.Container, look); string(answer.Stdout) != want {
		t.Errorf("the container sees %q, want %q; %s", answer.Stdout, want, answer.Stderr)
	}

	config, container := b.Sandbox("killed"), b.Container("c", "true")
	sandbox := b.RunSandbox(config)
	ofImage(large, nil)(config, container)
	ctx, answered := b.Ctx(), make(chan struct{})
	go func() {
		defer close(answered)
		// It fails, or it was faster than the kill.
		_, _ = b.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: container, SandboxConfig: config})
	}()
	copied := filepath.Join(root, "images", "pool", "*", "upper", "many", "*")
	b.Await("the first file", func() bool {
		select {
		case <-answered:
			return true
		default:
		}
		found, err := filepath.Glob(copied)
		return err == nil && len(found) > 0
	})
	b.KillDaemon()
	<-answered
	b.StartDaemon()
	b.Await("the removal of the half of a copy", func() bool {
		found, err := filepath.Glob(copied)
		return err == nil && len(found) == 0
	})
	if answer := b.Exec(pod.Container, look); string(answer.Stdout) != want {
		t.Errorf("after a kill the container sees %q, want %q", answer.Stdout, want)
	}
	b.RemovePod(sandbox)
	b.RemovePod(pod.Sandbox)
	b.Await("the removal of the copies", func() bool {
		one, err1 := filepath.Glob(filepath.Join(root, "images", "containers", "*"))
		shared, err2 := filepath.Glob(filepath.Join(root, "images", "copies", "*"))
		return err1 == nil && err2 == nil && len(one)+len(shared) == 0
	})
}

// TestCopiesInUserNamespaces: a pod with a user namespace sees a copy, and a mounted image, with its own ids.
func TestCopiesInUserNamespaces(t *testing.T) {
	b := harness.Start(t, harness.Options{Config: "[image]\nsnapshotter = \"native\"\n"})
	const owned = "docker.io/library/owned:1"
	b.ImportDeclaring(owned, nil, imagetest.File{Path: "/own", UID: 70, GID: 71, Mode: 0o4750})
	pod := runPodWith(b, "users", "touch /made; exec sleep 100000", inUsers(func(config *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
		ofImage(owned, nil)(config, c)
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{
			ContainerPath: "/volume", Readonly: true, Image: &runtimeapi.ImageSpec{Image: owned},
			UidMappings: idRange(usersRoot), GidMappings: idRange(usersRoot),
		})
	}))
	for script, want := range map[string]string{
		"stat -c '%u:%g %a' /volume/own":                    "70:71 4750",
		"stat -c '%u:%g' / /made":                           "0:0\n0:0",
		"chown 5:6 /own && stat -c '%u:%g' /own":            "5:6",
		"awk '$1 == 0 {print ($2 > 0)}' /proc/self/uid_map": "1",
	} {
		if got := b.ExecOut(pod.Container, script); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	b.RemovePod(pod.Sandbox)
}
