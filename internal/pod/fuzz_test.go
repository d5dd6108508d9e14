package pod_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/pod/podtest"
	"github.com/berthrun/berth/internal/pod/record"
)

// Ids of the records that FuzzRecords writes.
const (
	fuzzedSandbox   = "5a"
	fuzzedContainer = "c0"
)

// FuzzRecords: with any files of a pod, the daemon starts. It quarantines unusable files. It can
// report, stop and remove each object that it lists.
func FuzzRecords(f *testing.F) {
	for _, seed := range [][3]string{
		{
			`{"id":"5a","boot":"boot","state":"ready","config":{"metadata":{"name":"web","namespace":"ns","uid":"u"}},"createdAt":1,` +
				`"engine":{"NetNS":"/x","Pid":7},"network":{"ips":["10.0.0.1"],"cni":{"a":1}},"resources":{"overhead":{"cpuShares":"2"},"resources":null}}`,
			`{"id":"c0","sandboxID":"5a","boot":"boot","state":"running","config":{"metadata":{"name":"a"},"mounts":[{"image":{"image":"x"}}]},"image":{"id":"i"},` +
				`"volumeImages":{"0":"i"},"pid":7,"stop":{"by":"2020-01-01T00:00:00Z","timeout":5}}`,
			`{"sandboxID":"5a","netns":"/x","ports":[{"protocol":"tcp","hostPort":80}],"dns":{}}`,
		},
		{
			`{"id":"../../5a","state":"removing","config":{"metadata":{}}}`,
			`{"id":"c0","sandboxID":"5a","state":"exited","config":{"metadata":{"name":"a"},"mounts":[null]},"volumeImages":{"0":"i","-1":"j"}}`,
			`{"sandboxID":"x"}`,
		},
		{
			`{"id":"5a","boot":"other","state":"creating","config":{"metadata":{}}}`,
			`{"id":"c0","sandboxID":"5a","state":"starting","removing":true,"config":{"metadata":{}},"engine":{"StartError":"x","User":{}}}`,
			`null`,
		},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]), []byte(seed[2]))
	}
	f.Fuzz(func(t *testing.T, sandbox, container, attachment []byte) {
		var known record.Container
		if json.Unmarshal(container, &known) == nil && known.LogPath != "" {
			return // a container that was never created loses its log, at any path
		}
		dir := t.TempDir()
		state, root := filepath.Join(dir, "state"), filepath.Join(dir, "root")
		for _, file := range []struct {
			path, id string
			record   []byte
		}{
			{filepath.Join(state, "sandboxes"), fuzzedSandbox, sandbox},
			{filepath.Join(state, "containers"), fuzzedContainer, container},
			{filepath.Join(root, "attachments"), fuzzedSandbox, attachment},
			{filepath.Join(root, "tombstones", "containers"), fuzzedContainer, container},
		} {
			writeRecord(t, file.path, file.id, file.record)
		}
		parts := podtest.Fake()
		made := &engine.SandboxSpec{ID: fuzzedSandbox}
		if _, err := parts.Engine.CreateSandbox(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		if _, err := parts.Engine.Create(t.Context(), &engine.ContainerSpec{ID: fuzzedContainer, SandboxSpec: made}); err != nil {
			t.Fatal(err)
		}
		s := daemonOn(t, parts, state, root)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		askAll(ctx, t, s)
		removeAll(ctx, t, s)
		podtest.Eventually(t, "nothing is left", func() bool { return len(leftOf(t, parts, state)) == 0 })
	})
}

func writeRecord(t *testing.T, dir, id string, record []byte) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	data := fmt.Appendf(nil, `{"version":1,"id":%q,"record":%s}`, id, record)
	if err := os.WriteFile(filepath.Join(dir, id+".json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func daemonOn(t *testing.T, parts *podtest.Parts, state, root string) *pod.Service {
	t.Helper()
	s, err := pod.New(t.Context(), pod.Options{
		Engine: parts.Engine, Images: parts.Images, Network: parts.Network,
		StateDir: state, RootDir: root, BootID: "boot", Log: slog.New(slog.DiscardHandler),
		Limits: pod.Limits{
			Kill: time.Second, Settle: 50 * time.Millisecond, Batch: time.Millisecond, RetryMin: time.Millisecond, Grace: time.Second, Step: 2 * time.Second,
		},
	})
	if err != nil {
		t.Fatalf("the daemon does not start: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// askAll makes every call about the listed objects.
func askAll(ctx context.Context, t *testing.T, s *pod.Service) {
	t.Helper()
	events, err := s.Events()
	if err != nil {
		t.Fatal(err)
	}
	defer events.Cancel()
	sandboxes, err := podtest.Sandboxes(ctx, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range sandboxes {
		// An object that is being removed may be gone.
		_, _ = s.SandboxStatus(ctx, sb.GetId(), true)
		_, _ = s.PodSandboxStats(ctx, sb.GetId())
	}
	containers, err := podtest.Containers(ctx, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range containers {
		_, _, _ = s.ContainerStatus(ctx, c.GetId(), true)
		_, _ = s.ContainerStats(ctx, c.GetId())
		_ = s.StartContainer(ctx, c.GetId())
		_ = s.UpdateContainer(ctx, c.GetId(), &runtimeapi.LinuxContainerResources{CpuShares: 9})
	}
}

// removeAll removes the listed objects, as a kubelet does.
func removeAll(ctx context.Context, t *testing.T, s *pod.Service) {
	t.Helper()
	containers, err := podtest.Containers(ctx, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range containers {
		if err := s.RemoveContainer(ctx, c.GetId()); err != nil {
			t.Errorf("container %v: %v", c, err)
		}
	}
	sandboxes, err := podtest.Sandboxes(ctx, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range sandboxes {
		if err := s.RemoveSandbox(ctx, sb.GetId()); err != nil {
			t.Errorf("sandbox %v: %v", sb, err)
		}
	}
}

// leftOf lists the objects of the engine and the existing records.
func leftOf(t *testing.T, parts *podtest.Parts, state string) []string {
	t.Helper()
	actual, err := parts.Engine.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, a := range actual {
		left = append(left, a.ID)
	}
	records, err := filepath.Glob(filepath.Join(state, "*", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range records {
		left = append(left, strings.TrimPrefix(path, state))
	}
	return left
}
