//go:build integration

package integration

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const volumeImage = "docker.io/library/volume:1"

// importVolume imports an image without a program.
func importVolume(b *harness.Berth) (id string) {
	b.T.Helper()
	var archive bytes.Buffer
	err := imagetest.Archive(&archive, imagetest.Spec{Name: volumeImage, Layers: []imagetest.Layer{
		{
			{Path: "/data", Dir: true, Mode: 0o755},
			{Path: "/data/file", Content: []byte("low")},
			{Path: "/data/absolute", Symlink: "/data/sub"},
			{Path: "/data/out", Symlink: "../../../../../../../../etc"},
			{Path: "/data/loop", Symlink: "loop"},
		},
		{{Path: "/data/sub", Dir: true, Mode: 0o755}, {Path: "/data/sub/file", Content: []byte("sub")}, {Path: "/data/run", Content: []byte("#!/bin/sh\necho ran\n"), Mode: 0o755}},
	}})
	if err != nil {
		b.T.Fatal(err)
	}
	if _, err := b.Import(&archive); err != nil {
		b.T.Fatal(err)
	}
	answer, err := b.Images.ImageStatus(b.Ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: volumeImage}})
	if err != nil || answer.Image == nil {
		b.T.Fatalf("ImageStatus: %v, %v", answer, err)
	}
	return answer.Image.Id
}

func imageMount(subPath string) *runtimeapi.Mount {
	return &runtimeapi.Mount{ContainerPath: "/volume", Readonly: true, Image: &runtimeapi.ImageSpec{Image: volumeImage}, ImageSubPath: subPath}
}

func volumeMounts(b *harness.Berth) []string {
	return mountsMatching(b.T, func(path string) bool { return strings.HasPrefix(path, filepath.Join(b.State, "images")) })
}

func mountsMatching(t testing.TB, match func(path string) bool) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 1 && match(fields[1]) {
			found = append(found, fields[1])
		}
	}
	return found
}

// TestFieldMountsImage: mounts.image and image_sub_path of ContainerConfig.
func TestFieldMountsImage(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	id := importVolume(b)
	if engineRefuses(t, b, translate.ImageMounts, withVolume(""), "config.mounts[0].image") {
		return
	}
	for _, c := range []struct {
		name string
		test func(*testing.T, *harness.Berth, string)
	}{
		{"shared by a pod, read-only", imageShared},
		{"in a user namespace", imageForUsers},
		{"sub paths", imageSubPaths},
		{"kept while it is used", imageKept},
		{"over crashes", imageSurvives},
		{"absent", imageAbsent},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer func(parent testing.TB) { b.T = parent }(b.T)
			b.T = t
			c.test(t, b, id)
		})
	}
}

// withVolume mounts the image into the pod's container.
func withVolume(subPath string) podChange {
	return func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		container.Mounts = append(container.Mounts, imageMount(subPath))
	}
}

func imageShared(t *testing.T, b *harness.Berth, id string) {
	pod := runPodWith(b, "volume", "sleep 1000", withVolume(""))
	other := b.Container("other", "sleep 1000")
	other.Mounts = []*runtimeapi.Mount{imageMount("data")}
	second := b.Create(pod.Sandbox, other, pod.Config)
	b.StartContainer(second)
	if mounts := volumeMounts(b); b.Has(harness.MadeRootfs) && len(mounts) != 3 {
		t.Errorf("two containers and one volume have the mounts %q", mounts)
	}
	wantOut(t, b, pod.Container, [][2]string{
		{"cat /volume/data/file /volume/data/sub/file", "lowsub"},
		{"touch /volume/new 2>&1", "touch: /volume/new: Read-only file system"},
		{"mount -o remount,rw /volume 2>/dev/null || echo refused", "refused"},
		{"/volume/data/run", "ran"},
	})
	wantOut(t, b, second, [][2]string{{"cat /volume/file", "low"}})
	mount := b.Status(pod.Container).Mounts[0]
	// The pod's status shows this as imageID of a container of this image.
	status, err := b.Images.ImageStatus(b.Ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: id}})
	if err != nil {
		t.Fatal(err)
	}
	if mount.Image.Image != volumeImage || mount.Image.ImageRef != status.Image.RepoDigests[0] || mount.ContainerPath != "/volume" || mount.HostPath != "" {
		t.Errorf("the status has %v", mount)
	}
	b.RemovePod(pod.Sandbox)
	if left := volumeMounts(b); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func imageForUsers(t *testing.T, b *harness.Berth, _ string) {
	b.Needs(t, translate.UserNamespaces)
	pod := runPodWith(b, "volume-users", "sleep 1000", inUsers(func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		withVolume("data")(config, container)
		container.Mounts[0].UidMappings, container.Mounts[0].GidMappings = idRange(usersRoot), idRange(usersRoot)
	}))
	defer b.RemovePod(pod.Sandbox)
	wantOut(t, b, pod.Container, [][2]string{
		{"stat -c %u:%g /volume /volume/file /volume/sub", "0:0 0:0 0:0"},
		{"touch /volume/new 2>&1", "touch: /volume/new: Read-only file system"},
	})
}

func imageSubPaths(t *testing.T, b *harness.Berth, _ string) {
	config := b.Sandbox("volume-sub")
	sandbox := b.RunSandbox(config)
	defer b.RemovePod(sandbox)
	container := b.Container("c", "sleep 1000")
	// Links stay in the image, wherever they point.
	container.Mounts = []*runtimeapi.Mount{imageMount("data/absolute"), imageMount("data/./sub/")}
	if !b.Has(harness.LinksInVolumes) {
		container.Mounts[0].ImageSubPath = "data/sub"
	}
	container.Mounts[1].ContainerPath = "/second"
	id := b.Create(sandbox, container, config)
	b.StartContainer(id)
	wantOut(t, b, id, [][2]string{{"cat /volume/file /second/file", "subsub"}})
	for path, code := range map[string]codes.Code{
		"data/absent": codes.NotFound, "data/file": codes.InvalidArgument, "data/out": codes.NotFound, "data/loop": codes.InvalidArgument,
		"data/out/passwd": codes.NotFound, "data/file/x": codes.InvalidArgument,
	} {
		wrong := b.Container("wrong", "true")
		wrong.Mounts = []*runtimeapi.Mount{imageMount(path)}
		if !b.Has(harness.EarlyFaults) {
			if path == "data/file" { // the Docker Engine mounts files, too
				continue
			}
			wrong.Metadata.Name = "wrong-" + strings.ReplaceAll(path, "/", "-")
			_, err := b.Runtime.StartContainer(b.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: b.Create(sandbox, wrong, config)})
			if err == nil {
				t.Errorf("%s is mounted", path)
			}
			continue
		}
		_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: wrong, SandboxConfig: config})
		// The kubelet matches the beginning of the message.
		if status.Code(err) != code || !strings.HasPrefix(status.Convert(err).Message(), "ImageVolumeMountFailed") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// imageKept: a removed image stays while containers mount it, and disappears with the last of them.
func imageKept(t *testing.T, b *harness.Berth, id string) {
	pod := runPodWith(b, "volume-kept", "sleep 1000", withVolume("data"))
	if _, err := b.Images.RemoveImage(b.Ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: id}}); err != nil {
		t.Fatal(err)
	}
	b.StopDaemon()
	b.StartDaemon()
	wantOut(t, b, pod.Container, [][2]string{{"cat /volume/sub/file", "sub"}})
	// A later container needs the image itself.
	later := b.Container("later", "true")
	later.Mounts = []*runtimeapi.Mount{imageMount("")}
	_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.Sandbox, Config: later, SandboxConfig: pod.Config})
	if status.Code(err) != codes.NotFound {
		t.Errorf("a removed image: %v", err)
	}
	b.RemovePod(pod.Sandbox)
	layers := func() []string {
		found, err := filepath.Glob(filepath.Join(b.Root, "images", "snapshots", "snapshots", "*", "fs", "data"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	b.Await("the removed image's layers to go", func() bool { return len(layers()) == 0 })
	if importVolume(b) != id {
		t.Error("the same image has another id")
	}
}

func imageSurvives(t *testing.T, b *harness.Berth, _ string) {
	pod := runPodWith(b, "volume-crash", "sleep 1000", withVolume("data"))
	if supervisor := b.SupervisorPid(); supervisor != 0 {
		harness.Kill(t, supervisor)
	}
	b.KillDaemon()
	b.StartDaemon()
	wantOut(t, b, pod.Container, [][2]string{{"cat /volume/file", "low"}})
	other := b.Container("other", "sleep 1000")
	other.Mounts = []*runtimeapi.Mount{imageMount("data/sub")}
	second := b.Create(pod.Sandbox, other, pod.Config)
	b.StartContainer(second)
	wantOut(t, b, second, [][2]string{{"cat /volume/file", "sub"}})
	b.RemovePod(pod.Sandbox)
	if left := volumeMounts(b); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func imageAbsent(t *testing.T, b *harness.Berth, _ string) {
	config := b.Sandbox("volume-absent")
	sandbox := b.RunSandbox(config)
	defer b.RemovePod(sandbox)
	container := b.Container("c", "true")
	container.Mounts = []*runtimeapi.Mount{imageMount("")}
	container.Mounts[0].Image.Image = "docker.io/library/nowhere:1"
	_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: container, SandboxConfig: config})
	if status.Code(err) != codes.NotFound || !strings.HasPrefix(status.Convert(err).Message(), "ImageVolumeMountFailed") {
		t.Errorf("an absent image: %v", err)
	}
}
