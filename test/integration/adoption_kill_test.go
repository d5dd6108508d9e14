//go:build integration && e2e

package integration

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestAdoptionIsKilled: berth is killed in the middle of an adoption, again and again. The pods
// run on, nothing calls their plugins, and the last berth has them all.
func TestAdoptionIsKilled(t *testing.T) {
	const pods, kills = 8, 12
	n := newFormerNode(t, harness.Options{Args: []string{"--network", "cni"}})
	var all []harness.Pod
	for i := range pods {
		all = append(all, n.runFormerPod(fmt.Sprintf("web-%d", i), printNumbers))
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	// An adoption leaves two records, two records of the attachment, and a pin of each pod.
	const total = 5 * pods
	steps := func() (count int) {
		for _, pattern := range []string{
			filepath.Join(n.State, "pods", "*", "*.json"), filepath.Join(n.Root, "pods", "attachments", "*.json"),
			filepath.Join(n.Root, "network", "cni", "attachments", "*.json"), n.netns("*"),
		} {
			found, err := filepath.Glob(pattern)
			must(t, err)
			count += len(found)
		}
		return count
	}
	for range kills {
		target := min(steps()+1+random.IntN(4), total)
		n.LaunchDaemon()
		for n.Running() && steps() < target {
			time.Sleep(200 * time.Microsecond) // the kill comes between two steps
		}
		n.KillDaemon()
		t.Logf("killed after %d of %d steps", steps(), total)
	}
	n.StartDaemon()
	for i, pod := range all {
		n.assertUp(pod, fmt.Sprintf("web-%d", i))
		log := n.Status(pod.Container).GetLogPath()
		n.Await("the log in CRI format", func() bool { return isRegular(log) && numbersIn(t, log) > 3 })
		n.RemovePod(pod.Sandbox)
		n.assertRemoved(pod, n.netns(pod.Sandbox))
	}
}

// TestAdoptedPodsOverReboot: after a reboot the pods that berth has adopted are listed as ended,
// their plugins have got DEL, and they are removed. So are pods that no berth had adopted before
// it.
func TestAdoptedPodsOverReboot(t *testing.T) {
	n := newFormerNode(t, harness.Options{
		BinDir: harness.Bootable(t), Docker: &dockertest.Options{Args: []string{"--shutdown-timeout", "1"}},
	})
	pod := n.runFormerPod("web", "sleep 100000")
	n.StartDaemon()
	n.assertUp(pod, "web")
	n.Await("tombstones", func() bool {
		_, sandbox := filepath.Glob(tombstone(n.Berth, "sandboxes", pod.Sandbox))
		_, err := harness.LogLines(tombstone(n.Berth, "containers", pod.Container))
		return sandbox == nil && err == nil
	})
	n.KillDaemon()
	late := n.runFormerPod("late", "exit 4")
	n.Docker.Stop()
	n.Reboot()
	n.Docker.Launch()
	n.StartDaemon()
	for _, p := range []harness.Pod{pod, late} {
		if got := n.SandboxStatus(p.Sandbox); got.GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY || got.GetNetwork().GetIp() != "" {
			t.Errorf("sandbox %v", got)
		}
	}
	if got := n.AwaitExit(pod.Container); got.GetExitCode() == 0 || got.GetReason() == "" {
		t.Errorf("one that ran is %v", got)
	}
	if got := n.AwaitExit(late.Container); got.GetExitCode() != 4 || got.GetReason() != "Error" {
		t.Errorf("one that had ended is %v", got)
	}
	attachmentsGo(n.Berth)
	for _, p := range []harness.Pod{pod, late} {
		n.RemovePod(p.Sandbox)
		n.assertRemoved(p, "")
	}
}
