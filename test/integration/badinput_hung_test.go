//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/hungfs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A mount source that does not answer fails its own request, in time and by name. Other requests
// succeed meanwhile.
func TestHungMountSource(t *testing.T) {
	x := newTrial(t, harness.Options{})
	at := filepath.Join(x.Dir, "dead")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	disk := hungfs.Mount(t, t.TempDir(), at)
	x.ground = x.StillGround()
	disk.Hang()
	hung := make(chan error, 1)
	began := time.Now()
	go func() {
		config := x.Container("bad", "exit 0")
		config.Mounts = []*runtimeapi.Mount{{HostPath: at + "/volume", ContainerPath: "/m"}}
		_, err := x.Runtime.CreateContainer(x.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: x.pod.Sandbox, Config: config, SandboxConfig: x.pod.Config})
		hung <- err
	}()
	// The same pod can get another container while the first request waits.
	x.RemovePod(x.RunPod("other", "exit 0").Sandbox)
	beside := x.Create(x.pod.Sandbox, x.Container("beside", "exit 0"), x.pod.Config)
	x.StartContainer(beside)
	x.AwaitExit(beside)
	checkRefusal(t, <-hung, codes.Unavailable, []string{at, "has not answered"})
	t.Logf("answered after %s", time.Since(began).Round(time.Second))
	if _, err := x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: beside}); err != nil {
		t.Error(err)
	}
	x.nothingLeft(t)
	disk.Answer()
	// Once the disk answers, the same request succeeds. A kubelet repeats it: the first one may still meet the look that hung.
	config := x.Container("bad", "exit 0")
	config.Mounts = []*runtimeapi.Mount{{HostPath: at + "/volume", ContainerPath: "/m"}}
	var id string
	x.Await("a container with the mount", func() bool {
		answer, err := x.Runtime.CreateContainer(x.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: x.pod.Sandbox, Config: config, SandboxConfig: x.pod.Config})
		if err != nil && status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
		id = answer.GetContainerId()
		return err == nil
	})
	if _, err := x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
	x.nothingLeft(t)
}
