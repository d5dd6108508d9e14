//go:build integration

package integration

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/hungfs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestDaemonStartsWithADamagedImageStore: no damaged database of images prevents the daemon from
// starting, and running containers continue.
func TestDaemonStartsWithADamagedImageStore(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("stays", "exec sleep 1000")
	images := filepath.Join(b.Root, "images")
	rewrite := func(path string, change func([]byte) []byte) error {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, change(data), 0o600)
	}
	for _, damage := range []struct {
		name   string
		change func([]byte) []byte
	}{
		{"first pages overwritten", func(data []byte) []byte { copy(data, strings.Repeat("junk", 4096)); return data }},
		{"half of it", func(data []byte) []byte { return data[:len(data)/2] }},
		{"inner pages overwritten", func(data []byte) []byte {
			for at := 2 * os.Getpagesize(); at < len(data); at += 16 << 10 {
				copy(data[at:], strings.Repeat("junk", 4096))
			}
			return data
		}},
		{"all zeros", func(data []byte) []byte { clear(data); return data }},
		{"no bytes", func([]byte) []byte { return nil }},
	} {
		t.Run(damage.name, func(t *testing.T) {
			b.StopDaemon()
			err := errors.Join(rewrite(filepath.Join(images, "metadata.db"), damage.change), rewrite(filepath.Join(images, "snapshots/metadata.db"), damage.change))
			if err != nil {
				t.Fatal(err)
			}
			b.StartDaemon()
			if got := b.ExecOut(pod.Container, "ls /bin/busybox"); got != "/bin/busybox" {
				t.Errorf("in the container that runs: %q", got)
			}
			got, err := b.Images.ImageStatus(b.Ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: harness.Busybox}})
			if err != nil || got.Image == nil {
				t.Errorf("the image: %v, %v", got, err)
			}
			other := b.RunPod("after", "exec sleep 1000")
			b.RemovePod(other.Sandbox)
			if out := b.MustCLI("info"); !strings.Contains(out, "ImageStoreIntact:   yes; SetAside: ") || !strings.Contains(out, "quarantine") {
				t.Errorf("berth info says:\n%s", out)
			}
			if err := os.RemoveAll(filepath.Join(images, "quarantine")); err != nil {
				t.Fatal(err)
			}
			if out := b.MustCLI("info"); strings.Contains(out, "SetAside") {
				t.Errorf("berth info, after the quarantine was removed:\n%s", out)
			}
		})
	}
	b.RemovePod(pod.Sandbox)
}

// TestCheckOfImagesIsAJob: berth jobs lists a check while it runs. It ends with its client, and in whole it repairs
// what is damaged, and says how.
func TestCheckOfImagesIsAJob(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	img, err := imagetest.Build(imagetest.Spec{Files: []imagetest.File{{Path: "/file", Content: []byte("pulled")}}})
	must(t, err)
	var hangs atomic.Bool
	registry := &imagetest.Registry{Intercept: func(_ http.ResponseWriter, req *http.Request) bool {
		if hangs.Load() {
			<-req.Context().Done()
		}
		return false
	}}
	registry.Push("app", "1", img)
	ref := b.Serve(registry) + "/app:1"
	b.MustCLI("image", "pull", ref)
	content := filepath.Join(b.Root, "images", "content")
	blob := filepath.Join(content, "blobs/sha256", img.Layers[0].Digest.Encoded())
	must(t, os.WriteFile(blob, make([]byte, len(img.Layers[0].Data)), 0o600))
	must(t, os.Chmod(content, 0o777))

	hangs.Store(true)
	check := exec.Command(filepath.Join(b.Bin, "berth"), "image", "fsck", "--repair")
	check.Env = append(os.Environ(), "BERTH_ENDPOINT=unix://"+b.Socket)
	must(t, check.Start())
	b.Await("the check is listed as a job", func() bool { return strings.Contains(b.MustCLI("jobs"), "repair images") })
	b.Await("the check fetches a blob", func() bool { return strings.Contains(b.MustCLI("jobs"), "fetch a blob again") })
	must(t, check.Process.Signal(syscall.SIGINT))
	_ = check.Wait()
	b.Await("the job has ended", func() bool { return !strings.Contains(b.MustCLI("jobs"), "repair images") })
	hangs.Store(false)

	out, progress, err := b.CLI("image", "fsck", "--repair")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(progress, "fsck: comparing") {
		t.Errorf("the check: %v\n%s", err, progress)
	}
	for _, want := range []string{"repaired: blob " + img.Layers[0].Digest.String(), "its file has zeroes only", "fetched again from " + strings.TrimSuffix(ref, ":1"), "1 damaged, 1 of them repaired"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if fi, err := os.Stat(content); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("the mode of the content is %v, %v", fi.Mode(), err)
	}
	if out := b.MustCLI("image", "fsck"); !strings.Contains(out, "0 damaged") {
		t.Errorf("a second check:\n%s", out)
	}
	if data, err := os.ReadFile(blob); err != nil || !bytes.Equal(data, img.Layers[0].Data) {
		t.Errorf("the blob has %d bytes, %v", len(data), err)
	}
	b.MustCLI("image", "rm", ref)
}

// TestLostImagesByTheCommandLine: commands say what is damaged and what is lost, and a removal of either succeeds.
func TestLostImagesByTheCommandLine(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	blob := func(digest string) string {
		return filepath.Join(b.Root, "images/content/blobs/sha256", strings.TrimPrefix(digest, "sha256:"))
	}
	var all bytes.Buffer
	must(t, imagetest.OCIArchive(&all, imagetest.Spec{Name: "damaged:1", Files: []imagetest.File{{Path: "d"}}}, imagetest.Spec{Name: "lost:1", Files: []imagetest.File{{Path: "l"}}}))
	archive := filepath.Join(t.TempDir(), "all.tar")
	must(t, os.WriteFile(archive, all.Bytes(), 0o600))
	b.MustCLI("image", "import", "--pin", archive) // berth asks no registry for what is pinned
	ids := map[string]string{}
	for _, name := range []string{"damaged:1", "lost:1"} {
		status, err := b.Images.ImageStatus(b.Ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		must(t, err)
		ids[name] = status.GetImage().GetId()
	}

	must(t, os.Remove(blob(ids["damaged:1"])))
	if _, stderr, err := b.CLI("image", "inspect", "damaged:1"); err == nil || !strings.Contains(stderr, "is damaged on disk: its file is missing") || strings.Contains(stderr, "does not have image") {
		t.Errorf("inspect: %v\n%s", err, stderr)
	}
	if out := b.MustCLI("image", "rm", "damaged:1"); out != "damaged:1\n" {
		t.Errorf("the removal of a damaged image prints %q", out)
	}

	b.StopDaemon()
	must(t, os.Remove(blob(ids["lost:1"])))
	b.StartDaemon()
	if out := b.MustCLI("info"); !strings.Contains(out, "ImageStoreIntact:   no") {
		t.Errorf("berth info says:\n%s", out)
	}
	out, _, err := b.CLI("image", "fsck")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 4 || !strings.Contains(out, "damaged: image sha256:") || !strings.Contains(out, "docker.io/library/lost:1") {
		t.Errorf("fsck: %v\n%s", err, out)
	}
	if out, stderr, err := b.CLI("image", "rm", "lost:1"); err != nil || out != "lost:1\n" || !strings.Contains(stderr, "the node had lost this image") {
		t.Errorf("the removal of a lost image: %v, %q\n%s", err, out, stderr)
	}
	if out := b.MustCLI("info"); !strings.Contains(out, "ImageStoreIntact:   yes") {
		t.Errorf("berth info says after it:\n%s", out)
	}
	if _, stderr, err := b.CLI("image", "rm", "lost:1"); err == nil || !strings.Contains(stderr, "does not have image") {
		t.Errorf("the removal of a name that nobody has: %v\n%s", err, stderr)
	}
}

// TestPodsAreListedBeforeTheImageStoreIsChecked: a start reads the databases of images completely, which takes
// long on a slow disk. Pods are listed, run commands and stop meanwhile. Requests for images wait.
func TestPodsAreListedBeforeTheImageStoreIsChecked(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("stays", "exec sleep 1000")
	ended := b.RunPod("ends", "exec sleep 1000")
	b.KillDaemon()
	// The database of layers is on a disk that hangs when it is opened. It is a mount: the store follows no symbolic link.
	database := filepath.Join(b.Root, "images", "snapshots", "metadata.db")
	behind, at := t.TempDir(), t.TempDir()
	data, err := os.ReadFile(database)
	must(t, err)
	onDisk := filepath.Join(behind, "metadata.db")
	must(t, os.WriteFile(onDisk, data, 0o600))
	disk := hungfs.Mount(t, behind, at)
	must(t, unix.Mount(filepath.Join(at, "metadata.db"), database, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(database, unix.MNT_DETACH) }) // if the test ends early
	disk.HangOpens()
	b.LaunchDaemon()
	b.AwaitDaemon()

	image := make(chan error, 1)
	go func() {
		got, err := b.Images.ImageStatus(b.Ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: harness.Busybox}})
		if err == nil && got.Image == nil {
			err = errors.New("the image is not there")
		}
		image <- err
	}()
	sandboxes, err := b.Runtime.ListPodSandbox(b.Ctx(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(sandboxes.Items) != 2 {
		t.Errorf("pods: %v, %v", sandboxes.GetItems(), err)
	}
	containers, err := b.Runtime.ListContainers(b.Ctx(), &runtimeapi.ListContainersRequest{})
	if err != nil || len(containers.Containers) != 2 {
		t.Errorf("containers: %v, %v", containers.GetContainers(), err)
	}
	if got := b.ExecOut(pod.Container, "echo here"); got != "here" {
		t.Errorf("in a container: %q", got)
	}
	if _, err := b.Runtime.StopPodSandbox(b.Ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: ended.Sandbox}); err != nil {
		t.Errorf("the stop of a pod: %v", err)
	}
	select {
	case err := <-image:
		t.Fatalf("an image was found in databases that nobody has read: %v", err)
	default:
	}
	disk.Answer()
	if err := <-image; err != nil {
		t.Errorf("the image, once the disk answers: %v", err)
	}
	if aside, err := filepath.Glob(filepath.Join(b.Root, "images", "quarantine", "*")); err != nil || len(aside) > 0 {
		t.Errorf("the store was not opened as it was: %v, %v", aside, err)
	}
	b.RemoveAllPods()
	b.StopDaemon() // before the disk is unmounted
	must(t, unix.Unmount(database, 0))
	data, err = os.ReadFile(onDisk)
	must(t, err)
	must(t, os.WriteFile(database, data, 0o600))
	b.StartDaemon()
}

// TestDaemonServesBeforeItsBacklogIsRemoved: the daemon serves while it removes leftovers of
// thousands of earlier containers. A stop does not wait for the removal.
func TestDaemonServesBeforeItsBacklogIsRemoved(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("stays", "exec sleep 1000")
	b.StopDaemon()
	const stale = 3000
	containers, trash := filepath.Join(b.Root, "images", "containers"), filepath.Join(b.Root, "images", "trash")
	for i := range stale {
		dir := filepath.Join(containers, fmt.Sprintf("%064x", i))
		err := errors.Join(os.MkdirAll(filepath.Join(dir, "upper", "d"), 0o755), os.Mkdir(filepath.Join(dir, "work"), 0o700))
		for f := range 5 {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, "upper", "d", fmt.Sprint(f)), nil, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	large := filepath.Join(trash, "large")
	for i := range 60_000 {
		if i%1000 == 0 {
			if err := os.MkdirAll(filepath.Join(large, fmt.Sprint(i/1000)), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(large, fmt.Sprint(i/1000), fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.StartDaemon()
	if left, err := os.ReadDir(trash); err != nil || len(left) == 0 {
		t.Errorf("the daemon has served only after the backlog was gone: %v", err)
	}
	begin := time.Now()
	b.StopDaemon()
	if took := time.Since(begin); took > require.Patience(20*time.Second) {
		t.Errorf("the stop took %v", took)
	}
	b.StartDaemon()
	b.ExecOut(pod.Container, "true")
	b.RemovePod(pod.Sandbox)
	b.Await("the backlog to go", func() bool {
		left, err := os.ReadDir(trash)
		kept, keptErr := os.ReadDir(containers)
		if err := errors.Join(err, keptErr); err != nil {
			t.Fatal(err)
		}
		return len(left)+len(kept) == 0
	})
}
