//go:build integration

package integration

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/test/harness"
	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// After a reboot exited containers are listed as exited, with their codes and logs. Containers that
// ran are reported as interrupted. Images and their pins remain. Addresses are free.
func TestReboot(t *testing.T) {
	b := harness.Start(t, harness.Options{BinDir: harness.Bootable(t)})
	b.MustCLI("image", "import", "--pin", filepath.Join(b.Dir, "busybox.tar"))
	ended := b.RunPod("ended", "echo last words; exit 3")
	images := listImages(t, b) // with the one of the pause container, if the engine has one
	b.AwaitExit(ended.Container)
	clean := b.RunPod("clean", "exit 0")
	b.AwaitExit(clean.Container)
	mounted := withMount(&runtimeapi.Mount{
		ContainerPath: "/volume", Readonly: true, Image: &runtimeapi.ImageSpec{Image: harness.Busybox},
	})
	if b.Refuses(translate.ImageMounts) != nil {
		mounted = func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig) {}
	}
	running := runPodWith(b, "running", "echo begun; sleep 1000", mounted)
	created := b.Create(running.Sandbox, b.Container("created", "exit 0"), running.Config)
	before := b.Status(ended.Container)
	address := b.SandboxStatus(running.Sandbox).Network.Ip
	b.Await("tombstones", func() bool {
		for id, state := range map[string]string{running.Container: "running", ended.Container: "exited", clean.Container: "exited"} {
			data, _ := os.ReadFile(tombstone(b, "containers", id))
			if !strings.Contains(string(data), `"`+state+`"`) {
				return false
			}
		}
		return true
	})

	b.Reboot()
	for _, kind := range []string{"sandboxes", "containers"} { // files of what was being made, whose tombstone was not written
		must(t, os.MkdirAll(filepath.Join(b.Root, "pods", kind, strings.Repeat("c", 64), "part"), 0o700))
	}
	b.StartDaemon()

	after := b.Status(ended.Container)
	if diff := cmp.Diff(lasting(before), lasting(after)); diff != "" {
		t.Errorf("a container that had ended (-before +after):\n%s", diff)
	}
	if lines, err := harness.LogLines(after.LogPath); err != nil || !slices.Equal(lines, []string{"last words"}) {
		t.Errorf("its log has %q: %v", lines, err)
	}
	if got := b.Status(clean.Container); got.State != runtimeapi.ContainerState_CONTAINER_EXITED || got.ExitCode != 0 || got.Reason != "Completed" {
		t.Errorf("one that had ended well is %v with %d (%s)", got.State, got.ExitCode, got.Reason)
	}
	cut := b.Status(running.Container)
	if cut.State != runtimeapi.ContainerState_CONTAINER_EXITED || cut.ExitCode != 255 || cut.Reason != "Unknown" || cut.Message == "" {
		t.Errorf("one that ran is %v with %d (%s: %s)", cut.State, cut.ExitCode, cut.Reason, cut.Message)
	}
	for _, pod := range []harness.Pod{ended, clean, running} {
		if got := b.SandboxStatus(pod.Sandbox); got.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY || got.Network.GetIp() != "" {
			t.Errorf("sandbox %v with address %q, want NOTREADY without", got.State, got.Network.GetIp())
		}
	}
	if diff := cmp.Diff(images, listImages(t, b)); diff != "" {
		t.Errorf("images (-before +after):\n%s", diff)
	}
	// A container that never ran may be gone or reported as exited, but not as created.
	if answer, err := b.Runtime.ContainerStatus(b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: created}); err == nil &&
		answer.Status.State != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Errorf("one that was created is %v", answer.Status.State)
	}
	attachmentsGo(b)
	// berth unpacks the image again and the image runs. The address is free.
	again := b.RunPod("again", "exit 9")
	if status := b.AwaitExit(again.Container); status.ExitCode != 9 {
		t.Errorf("a new pod ended with %d", status.ExitCode)
	}
	reuse(t, b, address)
	// Only the disk had the volume's record. The volume is removed when its sandbox is stopped, and
	// the reboot did that.
	volumes := filepath.Join(b.Root, "images", "containers", running.Sandbox+"-*")
	b.RemovePod(running.Sandbox)
	if left, err := filepath.Glob(volumes); err != nil || len(left) != 0 {
		t.Errorf("volumes are left: %q, %v", left, err)
	}
	for _, pod := range []harness.Pod{ended, clean, again} {
		b.RemovePod(pod.Sandbox)
	}
	for _, dir := range []string{"pods/sandboxes", "pods/containers"} {
		b.Await(dir+" to be empty", func() bool {
			left, err := os.ReadDir(filepath.Join(b.Root, dir))
			return errs.IgnoreNotExist(err) == nil && len(left) == 0
		})
	}
}

func tombstone(b *harness.Berth, kind, id string) string {
	return filepath.Join(b.Root, "pods", "tombstones", kind, id+".json")
}

// lasting returns the parts of a status that a restart must not change.
func lasting(s *runtimeapi.ContainerStatus) map[string]any {
	return map[string]any{
		"name": s.Metadata.Name, "attempt": s.Metadata.Attempt, "state": s.State, "code": s.ExitCode, "reason": s.Reason,
		"created": s.CreatedAt, "started": s.StartedAt, "finished": s.FinishedAt, "image": s.Image.Image, "imageRef": s.ImageRef,
		"labels": s.Labels, "annotations": len(s.Annotations), "log": s.LogPath,
	}
}

// listImages returns the images by id, with names and whether they are pinned.
func listImages(t *testing.T, b *harness.Berth) map[string]string {
	t.Helper()
	answer, err := b.Images.ListImages(b.Ctx(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, image := range answer.Images {
		all[image.Id] = strings.Join(image.RepoTags, " ")
		if image.Pinned {
			all[image.Id] += " pinned"
		}
	}
	if len(all) == 0 || !strings.Contains(strings.Join(slices.Collect(maps.Values(all)), " "), "pinned") {
		t.Fatalf("no pinned image in %v", all)
	}
	return all
}

// attachmentsGo waits until berth has released all networks from before the restart.
func attachmentsGo(b *harness.Berth) {
	b.T.Helper()
	b.Await("old attachments to be given back", func() bool {
		left, err := os.ReadDir(filepath.Join(b.Root, "pods", "attachments"))
		return err == nil && len(left) == 0
	})
}

// reuse runs pods until one has the address.
func reuse(t *testing.T, b *harness.Berth, address string) {
	t.Helper()
	for i := range 300 {
		sandbox := b.RunSandbox(b.Sandbox("reuse"))
		got := b.SandboxStatus(sandbox).Network.Ip
		b.RemovePod(sandbox)
		if got == address {
			t.Logf("address %s came back after %d pods", address, i+1)
			return
		}
	}
	t.Errorf("address %s never came back", address)
}
