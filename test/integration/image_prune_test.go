//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/test/harness"
)

// importSmall imports an image of one file.
func importSmall(b *harness.Berth, name string, options ...string) {
	b.T.Helper()
	file := filepath.Join(b.Dir, "small.tar")
	archive, err := os.Create(file)
	if err != nil {
		b.T.Fatal(err)
	}
	defer archive.Close()
	if err := imagetest.Archive(archive, imagetest.Spec{Name: name, Files: []imagetest.File{{Path: "/file", Content: []byte(strings.Repeat(name, 1000))}}}); err != nil {
		b.T.Fatal(err)
	}
	b.MustCLI(append([]string{"image", "import", file}, options...)...)
}

// imageNames are the tags of the node's images, without that of berth's own with a Docker Engine, which is pinned.
func imageNames(t *testing.T, b *harness.Berth) (names []string) {
	t.Helper()
	list, err := b.Images.ListImages(b.Ctx(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range list.Images {
		names = append(names, img.RepoTags...)
	}
	slices.Sort(names)
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "berth.invalid/") })
}

// TestImagePrune: prune removes what no container uses and nobody has pinned, and with --dry-run nothing. An exited
// container uses its image, and a volume does.
func TestImagePrune(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	const pinned, unused, other = "docker.io/library/pinned:1", "docker.io/library/unused:1", "docker.io/library/unused:2"
	mounts := b.Refuses(translate.ImageMounts) == nil
	kept := []string{harness.Busybox, pinned}
	if mounts {
		importVolume(b)
		kept = append(kept, volumeImage)
	}
	importSmall(b, pinned, "--pin")
	importSmall(b, unused)
	importSmall(b, other)
	config := b.Sandbox("web")
	sandbox := b.RunSandbox(config)
	container := b.Container("main", "true")
	if mounts {
		container.Mounts = []*runtimeapi.Mount{imageMount("")}
	}
	id := b.Create(sandbox, container, config)
	b.StartContainer(id)
	b.AwaitExit(id)

	all := imageNames(t, b)
	said := b.MustCLI("image", "prune", "--dry-run")
	lines := strings.Split(strings.TrimSpace(said), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "would remove "+unused+" (") || !strings.HasPrefix(lines[1], "would remove "+other+" (") ||
		!strings.HasPrefix(lines[2], "would free ") || !strings.HasSuffix(lines[2], " of 2 images") {
		t.Errorf("a dry run says %q", said)
	}
	if now := imageNames(t, b); !slices.Equal(now, all) {
		t.Errorf("images after a dry run: %v, want %v", now, all)
	}
	said = b.MustCLI("image", "prune")
	if !strings.HasPrefix(said, "removed "+unused) || !strings.Contains(said, "\nfreed ") || strings.Contains(said, "freed 0B") {
		t.Errorf("prune says %q", said)
	}
	if now := imageNames(t, b); !slices.Equal(now, kept) {
		t.Errorf("images after prune: %v, want %v", now, kept)
	}
	if said := b.MustCLI("image", "prune"); said != "freed 0B of 0 images\n" {
		t.Errorf("with nothing to remove, prune says %q", said)
	}
	b.RemovePod(sandbox)
	b.MustCLI("image", "prune")
	if now, want := imageNames(t, b), []string{pinned}; !slices.Equal(now, want) {
		t.Errorf("images after the pod: %v, want %v", now, want)
	}
}

// TestImageRemoveNamesUsers: `berth image rm` says which containers use the image, which goes, and they go on.
func TestImageRemoveNamesUsers(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	const unused = "docker.io/library/unused:1"
	importSmall(b, unused)
	pod := b.RunPod("web", "echo up; exec sleep 1000")
	ids := strings.Fields(b.MustCLI("image", "ls", "-q"))
	list, err := b.Images.ListImages(b.Ctx(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(ids) != len(list.Images) || slices.ContainsFunc(list.Images, func(img *runtimeapi.Image) bool { return !slices.Contains(ids, img.Id) }) {
		t.Errorf("ls -q prints %q, the images are %v", ids, list.Images)
	}
	_, said, err := b.CLI("image", "rm", unused)
	if err != nil || said != "" {
		t.Errorf("rm of an unused image: %v, %q", err, said)
	}
	out, said, err := b.CLI("image", "rm", harness.Busybox)
	if b.Docker != nil { // the engine keeps the image of a container that runs
		if err == nil {
			t.Error("the engine has removed an image that is in use")
		}
		return
	}
	want := harness.Busybox + ": its layers stay on disk until the containers that use it are removed: c (" + pod.Container[:12] + ") of pod default/web\n"
	if err != nil || out != harness.Busybox+"\n" || said != want {
		t.Errorf("rm of an image in use: %v, %q, %q, want %q", err, out, said, want)
	}
	if got := b.ExecOut(pod.Container, "cat /etc/group | head -n 1"); got != "root:x:0:" {
		t.Errorf("the container has lost its files: %q", got)
	}
	if left := imageNames(t, b); len(left) != 0 {
		t.Errorf("images are left: %v", left)
	}
}
