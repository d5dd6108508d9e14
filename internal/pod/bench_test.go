package pod_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/pod/podtest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// kubeletLike returns a config as large as a kubelet's for an ordinary pod.
func kubeletLike(config *runtimeapi.ContainerConfig) *runtimeapi.ContainerConfig {
	for i := range 30 {
		config.Envs = append(config.Envs, &runtimeapi.KeyValue{
			Key: fmt.Sprintf("WEB_SERVICE_PORT_%d", i), Value: fmt.Appendf(nil, "tcp://10.96.%d.1:8080", i),
		})
	}
	for i := range 10 {
		config.Mounts = append(config.Mounts, &runtimeapi.Mount{
			ContainerPath: fmt.Sprintf("/var/run/secrets/kubernetes.io/volume-%d", i),
			HostPath:      fmt.Sprintf("/var/lib/kubelet/pods/5f0b1c9e-3f0e-4a52-9d0c-8a2d3f6b7c11/volumes/kubernetes.io~projected/volume-%d", i),
			Readonly:      true,
		})
	}
	for i := range 6 {
		config.Annotations[fmt.Sprintf("io.kubernetes.container.annotation-%d", i)] = "a value of some length, as the kubelet's are"
	}
	return config
}

// BenchmarkPodLife measures the rules alone: a pod's whole life on an engine and a network that
// take no time.
func BenchmarkPodLife(b *testing.B) {
	w := podtest.NewWorld(b, podtest.Fake())
	w.Limits = pod.Limits{Batch: time.Second}
	s := w.Daemon(nil)
	ctx := b.Context()
	i := 0
	for b.Loop() {
		i++
		sandbox, err := s.RunSandbox(ctx, w.SandboxConfig(fmt.Sprint("pod", i)), "")
		if err != nil {
			b.Fatal(err)
		}
		id, err := s.CreateContainer(ctx, sandbox, kubeletLike(w.ContainerConfig("main", w.Programs.Sleep)))
		if err != nil {
			b.Fatal(err)
		}
		for _, err := range []error{
			s.StartContainer(ctx, id), s.StopContainer(ctx, id, 10), s.RemoveContainer(ctx, id),
			s.StopSandbox(ctx, sandbox), s.RemoveSandbox(ctx, sandbox),
		} {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}

// TestMemoryPerContainer: the records of a thousand containers stay far below the daemon's budget
// of 65 KB per container.
func TestMemoryPerContainer(t *testing.T) {
	const count = 1000
	w := podtest.NewWorld(t, podtest.Fake())
	s := w.Daemon(nil)
	sandbox, err := s.RunSandbox(t.Context(), w.SandboxConfig("web"), "")
	if err != nil {
		t.Fatal(err)
	}
	before := heap()
	for i := range count {
		config := kubeletLike(w.ContainerConfig(fmt.Sprint("c", i), w.Programs.Sleep))
		config.LogPath = ""
		id, err := s.CreateContainer(t.Context(), sandbox, config)
		if err == nil {
			err = s.StartContainer(t.Context(), id)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	podtest.Eventually(t, "no job is left", func() bool { return len(s.Jobs()) == 0 })
	each := (heap() - before) / count
	t.Logf("%d bytes for each container", each)
	if each > 32<<10 {
		t.Errorf("%d bytes for each container", each)
	}
	if err := s.RemoveSandbox(t.Context(), sandbox); err != nil {
		t.Fatal(err)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far below the limit
}

// TestCallsPerPod: the life of a pod makes the same calls to the engine, the network and the disk,
// however many pods there are.
func TestCallsPerPod(t *testing.T) {
	var mu sync.Mutex
	calls := map[string]int{}
	w := podtest.NewWorld(t, podtest.Fake())
	w.Limits = pod.Limits{Batch: time.Hour} // tombstones are written in batches of any size
	s := w.Daemon(podtest.NewScript(func(_ int, name string) error {
		mu.Lock()
		defer mu.Unlock()
		calls[name]++
		return nil
	}))
	up := func(name string) string {
		sandbox, err := s.RunSandbox(t.Context(), w.SandboxConfig(name), "")
		if err != nil {
			t.Fatal(err)
		}
		id, err := s.CreateContainer(t.Context(), sandbox, w.ContainerConfig("main", w.Programs.Sleep))
		if err == nil {
			err = s.StartContainer(t.Context(), id)
		}
		if err != nil {
			t.Fatal(err)
		}
		return sandbox
	}
	life := func(name string) map[string]int {
		mu.Lock()
		clear(calls)
		mu.Unlock()
		sandbox := up(name)
		for _, end := range []func(context.Context, string) error{s.StopSandbox, s.RemoveSandbox} {
			if err := end(t.Context(), sandbox); err != nil {
				t.Fatal(err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(calls)
	}
	podtest.Eventually(t, "the clean-up after the start is over", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return calls["after network.GC"] == 1
	})
	few := life("alone")
	var others []string
	for i := range 200 {
		others = append(others, up(fmt.Sprint("other", i)))
	}
	if diff := cmp.Diff(few, life("among-many")); diff != "" {
		t.Errorf("calls for one pod alone (-) and beside 200 others (+):\n%s", diff)
	}
	for _, sandbox := range others {
		if err := s.RemoveSandbox(t.Context(), sandbox); err != nil {
			t.Fatal(err)
		}
	}
}
