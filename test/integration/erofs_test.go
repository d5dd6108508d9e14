//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

const erofsConfig = "[runtime]\ndefault_handler = \"dense\"\n[handlers.dense]\nkind = \"builtin\"\nsnapshotter = \"erofs\"\n"

// erofsNode is a berth whose pods have the snapshotter erofs, and the test image in a registry.
type erofsNode struct {
	*harness.Berth
	t     *testing.T
	ref   string
	image string
}

func startErofs(t *testing.T, opts harness.Options) *erofsNode {
	t.Helper()
	require.Root(t)
	require.EROFS(t)
	opts.Config = erofsConfig
	n := &erofsNode{Berth: harness.Start(t, opts), t: t}
	n.NeedsPart(t, harness.Supervisors)
	img, err := imagetest.Build(harness.BusyboxSpec(n.Berth, "", imagetest.File{Path: "/note", Content: []byte("from the image\n")}))
	if err != nil {
		t.Fatal(err)
	}
	registry := &imagetest.Registry{}
	registry.Push("app", "1", img)
	n.ref, n.image = n.Serve(registry)+"/app:1", img.ID()
	n.pull()
	return n
}

func (n *erofsNode) pull() {
	n.t.Helper()
	if _, err := n.Images.PullImage(n.Ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: n.ref}}); err != nil {
		n.t.Fatal(err)
	}
}

// pod runs a pod of the image.
func (n *erofsNode) pod(name string, change func(*runtimeapi.ContainerConfig)) harness.Pod {
	n.t.Helper()
	config := n.Sandbox(name)
	sandbox := n.RunSandbox(config)
	container := n.Container("main", "exec sleep 100000")
	container.Image = &runtimeapi.ImageSpec{Image: n.image, UserSpecifiedImage: n.ref}
	if change != nil {
		change(container)
	}
	id := n.Create(sandbox, container, config)
	n.StartContainer(id)
	return harness.Pod{Sandbox: sandbox, Container: id}
}

// layers lists the mounts of layers.
func (n *erofsNode) layers() (mounts []string) {
	n.t.Helper()
	for _, at := range harness.FindLeftovers(n.Dir).Mounts {
		if strings.HasPrefix(at, filepath.Join(n.State, "images", "erofs")+"/") {
			mounts = append(mounts, at)
		}
	}
	return mounts
}

// TestErofsPods: pods run from EROFS images through the death of berth, and leave no mount.
func TestErofsPods(t *testing.T) {
	n := startErofs(t, harness.Options{})
	pods := []harness.Pod{
		n.pod("plain", nil),
		n.pod("readonly", func(c *runtimeapi.ContainerConfig) {
			c.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{ReadonlyRootfs: true}}
		}),
	}
	for _, pod := range pods {
		if got := n.ExecOut(pod.Container, "cat /note"); got != "from the image" {
			t.Errorf("the file of the image has %q", got)
		}
		// Containers see their root filesystem, and no mount of a layer.
		if got := n.ExecOut(pod.Container, "grep erofs /proc/self/mountinfo | grep -v lowerdir || true"); got != "" {
			t.Errorf("a container sees the mounts of layers:\n%s", got)
		}
	}
	if answer, err := n.Runtime.ContainerStatus(n.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: pods[0].Container, Verbose: true}); err != nil || !strings.Contains(answer.Info["info"], `"snapshotter":"erofs"`) {
		t.Errorf("the snapshotter of a container: %v, %v", answer.GetInfo(), err)
	}
	n.ExecOut(pods[0].Container, "echo changed > /note")
	n.KillDaemon()
	n.StartDaemon()
	if got := n.ExecOut(pods[0].Container, "cat /note"); got != "changed" {
		t.Errorf("after a kill the file has %q", got)
	}
	pods = append(pods, n.pod("later", nil))
	if got := n.layers(); len(got) != 1 {
		t.Errorf("the mounts of layers of three pods are %q", got)
	}
	if _, err := n.Images.RemoveImage(n.Ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: n.image}}); err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		n.RemovePod(pod.Sandbox)
	}
	n.Await("removal of the layers", func() bool {
		left, err := filepath.Glob(filepath.Join(n.Root, "images", "erofs", "layers", "*"))
		return err == nil && len(left) == 0 && len(n.layers()) == 0
	})
}

// TestErofsAfterAReboot: a reboot takes all mounts, and pods get them again.
func TestErofsAfterAReboot(t *testing.T) {
	n := startErofs(t, harness.Options{BinDir: harness.Bootable(t)})
	n.pod("before", nil)
	n.Reboot()
	n.StartDaemon()
	n.RemoveAllPods()
	if got := n.layers(); len(got) != 0 {
		t.Errorf("after a reboot the mounts of layers are %q", got)
	}
	pod := n.pod("after", nil)
	if got := n.ExecOut(pod.Container, "cat /note"); got != "from the image" {
		t.Errorf("the file of the image has %q", got)
	}
}

// TestErofsUserNamespace: the pod of a user namespace has its image from EROFS images.
func TestErofsUserNamespace(t *testing.T) {
	n := startErofs(t, harness.Options{})
	n.Needs(t, translate.UserNamespaces)
	config := n.Sandbox("users")
	users := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: idRange(usersRoot), Gids: idRange(usersRoot)}
	config.Linux = &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{UsernsOptions: users}}}
	if _, err := n.Images.PullImage(n.Ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: n.ref}, SandboxConfig: config}); err != nil {
		t.Fatal(err)
	}
	sandbox := n.RunSandbox(config)
	container := n.Container("main", "exec sleep 100000")
	container.Image = &runtimeapi.ImageSpec{Image: n.image, UserSpecifiedImage: n.ref}
	container.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{UsernsOptions: users}}}
	id := n.Create(sandbox, container, config)
	n.StartContainer(id)
	if got := n.ExecOut(id, "stat -c %u /note && echo more >> /note && tail -n 1 /note"); got != "0\nmore" {
		t.Errorf("a user namespace sees %q", got)
	}
	if got := len(n.layers()); got != 1 {
		t.Errorf("there are %d mounts of layers", got)
	}
	n.RemovePod(sandbox)
	if _, err := n.Images.RemoveImage(n.Ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: n.image}}); err != nil {
		t.Fatal(err)
	}
	n.Await("unmounting of the layers", func() bool { return len(n.layers()) == 0 })
}

// TestErofsWritableLimit: the limit of what a container writes holds over EROFS images.
func TestErofsWritableLimit(t *testing.T) {
	disk := mountDisk(t, "mkfs.ext4", "-O", "project,quota", "-E", "quotatype=prjquota")
	require.EROFS(t)
	root := filepath.Join(disk, "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	b := harness.Start(t, harness.Options{Args: []string{"--root", root}, Config: fmt.Sprintf("%s[defaults]\nwritable_limit = %d\n", erofsConfig, writableLimit)})
	b.Root = root
	b.NeedsPart(t, harness.Supervisors)
	img, err := imagetest.Build(harness.BusyboxSpec(b, ""))
	if err != nil {
		t.Fatal(err)
	}
	registry := &imagetest.Registry{}
	registry.Push("app", "1", img)
	n := &erofsNode{Berth: b, t: t, ref: b.Serve(registry) + "/app:1", image: img.ID()}
	n.pull()
	pod := n.pod("limited", nil)
	wantBounded(t, b, "erofs", pod.Container, "/")
	if got := len(n.layers()); got != 1 {
		t.Errorf("there are %d mounts of layers", got)
	}
	n.RemovePod(pod.Sandbox)
}
