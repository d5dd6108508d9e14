package handover

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/provisiontest"
	"github.com/berthrun/berth/internal/provision/reconciler"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// TestTwoFormerRuntimes: a node with a kubelet that ran two runtimes before drains both. If a later
// task fails, the kubelet runs again.
func TestTwoFormerRuntimes(t *testing.T) {
	host := provisiontest.New()
	if err := host.Files().Write("/etc/systemd/system/"+kubeletUnit, strings.NewReader("[Service]\n"), provision.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	host.StartNow(kubeletUnit)
	first := &fakeRuntime{pods: []*runtimeapi.PodSandbox{pod("1", "db", runtimeapi.PodSandboxState_SANDBOX_READY)}}
	second := &fakeRuntime{pods: []*runtimeapi.PodSandbox{pod("2", "web", runtimeapi.PodSandboxState_SANDBOX_READY)}}
	drain := func(name string, runtime *fakeRuntime, needs ...string) Drain {
		return Drain{M: provision.Meta{Needs: needs}, Old: Runtime{Name: name, Endpoint: runtime.serve(t)}, New: Runtime{Name: "berth"}, Kubelet: true}
	}
	one := drain("docker", first)
	two := drain("cri-dockerd", second, one.ID())
	fails := tasks.Command{M: provision.Meta{Needs: []string{two.ID()}}, Name: "fails", Args: []string{"fails"}}
	host.Programs["fails"] = func(provision.Command) ([]byte, error) { return nil, context.DeadlineExceeded }

	kinds := tasks.Kinds()
	maps.Copy(kinds, Kinds())
	rc, err := reconciler.New(reconciler.Config{
		Host: host, Kinds: kinds, Version: "test", Sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() },
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = rc.Apply(t.Context(), provision.Target{Tasks: []provision.Task{one, two, fails}}, reconciler.ApplyOptions{AllowDisruption: true})
	if err == nil || !strings.Contains(err.Error(), "fails") {
		t.Fatalf("apply: %v", err)
	}
	if len(first.pods)+len(second.pods) > 0 {
		t.Errorf("pods are left: %v, %v", first.pods, second.pods)
	}
	if running, err := kubeletRuns(t.Context(), host); err != nil || !running {
		t.Errorf("the kubelet was not started again: %v", err)
	}
}
