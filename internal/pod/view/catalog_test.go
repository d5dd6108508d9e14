package view

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/pod/job"
	"github.com/berthrun/berth/internal/pod/record"
	"github.com/berthrun/berth/internal/store"
)

// memory is a disk that keeps nothing.
type memory struct{}

func (memory) Write(string, []byte) error      { return nil }
func (memory) WriteWhole(string, []byte) error { return nil }
func (memory) Remove(string) error             { return nil }
func (memory) Sync(string) error               { return nil }

func newView(t testing.TB) *View {
	t.Helper()
	dir := t.TempDir()
	records, source, err := OpenRecords(record.Options{
		StateDir: filepath.Join(dir, "state"), RootDir: filepath.Join(dir, "root"), Disk: memory{}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return New(nil, records, source, job.NewTable(nil, nil, nil, nil, nil))
}

// kubeletContainer is the record of a container of an ordinary pod.
func kubeletContainer(n int, state record.ContainerState) *record.Container {
	return &record.Container{
		ID: fmt.Sprintf("c%063x", n), SandboxID: fmt.Sprintf("%064x", n), State: state, CreatedAt: int64(n),
		Image: record.ImageSnapshot{ID: "sha256:" + fmt.Sprintf("%064x", 7), Ref: "registry.example/web@sha256:" + fmt.Sprintf("%064x", 8)},
		Config: store.MessageOf(&runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "web"}, Image: &runtimeapi.ImageSpec{Image: "registry.example/web:1"},
			Labels: map[string]string{
				"io.kubernetes.container.name": "web", "io.kubernetes.pod.name": fmt.Sprintf("web-6d4b75cb6d-%05d", n),
				"io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": fmt.Sprintf("5f0b1c9e-3f0e-4a52-9d0c-%012d", n),
			},
			Annotations: map[string]string{
				"io.kubernetes.container.hash": "8f1d2c3b", "io.kubernetes.container.restartCount": "0",
				"io.kubernetes.container.terminationMessagePath": "/dev/termination-log", "io.kubernetes.pod.terminationGracePeriod": "30",
			},
		}),
	}
}

func listedContainers(t testing.TB, v *View, filter *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	t.Helper()
	items, err := v.ListContainers(t.Context(), filter)
	if err != nil {
		t.Fatal(err)
	}
	resp := &runtimeapi.ListContainersResponse{}
	if err := proto.Unmarshal(items.Wire(), resp); err != nil || len(resp.Containers) != items.Len() {
		t.Fatalf("%d of %d items: %v", len(resp.Containers), items.Len(), err)
	}
	return resp.Containers
}

// After any sequence of changes, lists show exactly the present records, in their order, with and
// without a filter.
func TestListsFollowEachChange(t *testing.T) {
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any number
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	v := newView(t)
	states := []record.ContainerState{record.ContainerCreating, record.ContainerCreated, record.ContainerRunning, record.ContainerExited}
	present := map[int]*record.Container{}
	running := &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}}
	for range 200 {
		n := random.IntN(20)
		rec := kubeletContainer(n, states[random.IntN(len(states))])
		rec.CreatedAt = int64(n / 3) // some are of one time
		var err error
		switch {
		case present[n] == nil:
			present[n], err = rec, v.records.Containers.Create(rec.ID, rec)
		case random.IntN(3) == 0:
			delete(present, n)
			err = v.records.Containers.Delete(rec.ID)
		default:
			present[n], err = v.records.Containers.Update(rec.ID, func(r *record.Container) error { r.State = rec.State; return nil })
		}
		if err != nil {
			t.Fatal(err)
		}
		if random.IntN(3) == 0 {
			continue // several changes before a list
		}
		var want, wantRunning []*runtimeapi.Container
		for _, rec := range present {
			if rec.Visible() {
				want = append(want, listedContainer(rec).(*runtimeapi.Container))
			}
		}
		slices.SortFunc(want, func(a, b *runtimeapi.Container) int {
			return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.Id, b.Id))
		})
		for _, c := range want {
			if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
				wantRunning = append(wantRunning, c)
			}
		}
		if diff := gocmp.Diff(want, listedContainers(t, v, nil), protocmp.Transform()); diff != "" {
			t.Fatal(diff)
		}
		if diff := gocmp.Diff(wantRunning, listedContainers(t, v, running), protocmp.Transform()); diff != "" {
			t.Fatal(diff)
		}
	}
}

// A list that begins after a change has returned shows the change, whatever lists run at the time.
func TestNoListIsStale(t *testing.T) {
	v := newView(t)
	const containers, changes = 4, 20
	done := make(chan struct{})
	var readers, writers sync.WaitGroup
	readers.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				listedContainers(t, v, nil)
			}
		}
	})
	for n := range containers {
		rec := kubeletContainer(n, record.ContainerRunning)
		if err := v.records.Containers.Create(rec.ID, rec); err != nil {
			t.Fatal(err)
		}
		writers.Go(func() {
			for i := range changes {
				state, want := record.ContainerExited, runtimeapi.ContainerState_CONTAINER_EXITED
				if i%2 == 1 {
					state, want = record.ContainerRunning, runtimeapi.ContainerState_CONTAINER_RUNNING
				}
				if _, err := v.records.Containers.Update(rec.ID, func(r *record.Container) error { r.State = state; return nil }); err != nil {
					t.Error(err)
				}
				list := listedContainers(t, v, &runtimeapi.ContainerFilter{Id: rec.ID})
				if len(list) != 1 || list[0].State != want {
					t.Errorf("listed %v after a change to %s", list, state)
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
}

// Between two changes a list encodes nothing: all lists are the same bytes.
func TestUnchangedRecordsAreEncodedOnce(t *testing.T) {
	v := newView(t)
	encoded := map[string]int{}
	show := v.containers.show
	v.containers.show = func(rec *record.Container) proto.Message {
		encoded[rec.ID]++
		return show(rec)
	}
	for n := range 5 {
		rec := kubeletContainer(n, record.ContainerRunning)
		if err := v.records.Containers.Create(rec.ID, rec); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if list := listedContainers(t, v, nil); len(list) != n+1 {
				t.Fatalf("%d listed of %d", len(list), n+1)
			}
		}
	}
	for id, times := range encoded {
		if times != 1 {
			t.Errorf("container %s was encoded %d times", id, times)
		}
	}
}

func TestPartsHaveEachItemOnce(t *testing.T) {
	var items Items
	for n := range 40 {
		if err := items.Append(&runtimeapi.PodSandbox{Id: fmt.Sprintf("%0*d", 1+n%7*10, n)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []int{1, 50, 64, 1000, 1 << 20} {
		var got []byte
		for part := range items.Parts(limit) {
			resp := &runtimeapi.StreamPodSandboxesResponse{}
			if err := proto.Unmarshal(part, resp); err != nil || len(resp.PodSandboxes) == 0 {
				t.Fatalf("limit %d: %v, %v", limit, resp, err)
			}
			if len(part) > limit && len(resp.PodSandboxes) > 1 {
				t.Errorf("limit %d: a part of %d bytes has %d items", limit, len(part), len(resp.PodSandboxes))
			}
			got = append(got, part...)
		}
		if !slices.Equal(got, items.Wire()) {
			t.Errorf("limit %d: the parts are not all items in their order", limit)
		}
	}
	for range (Items{}).Parts(10) {
		t.Error("a part of no items")
	}
}

func BenchmarkListContainers(b *testing.B) {
	for _, count := range []int{100, 1000} {
		v := newView(b)
		for n := range count {
			rec := kubeletContainer(n, record.ContainerRunning)
			if err := v.records.Containers.Create(rec.ID, rec); err != nil {
				b.Fatal(err)
			}
		}
		encode := func(b *testing.B) {
			items, err := v.ListContainers(b.Context(), nil)
			if err != nil || items.Len() != count {
				b.Fatal(items.Len(), err)
			}
			resp := &runtimeapi.ListContainersResponse{}
			resp.ProtoReflect().SetUnknown(items.Wire())
			if _, err := proto.Marshal(resp); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(fmt.Sprintf("unchanged/%d", count), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				encode(b)
			}
		})
		b.Run(fmt.Sprintf("one-changed/%d", count), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.records.Containers.Update(fmt.Sprintf("c%063x", 3), func(*record.Container) error { return nil }); err != nil {
					b.Fatal(err)
				}
				encode(b)
			}
		})
		b.Run(fmt.Sprintf("all-encoded/%d", count), func(b *testing.B) { // what every list did without the catalog
			b.ReportAllocs()
			for b.Loop() {
				resp := &runtimeapi.ListContainersResponse{}
				for _, rec := range v.records.Containers.All() {
					resp.Containers = append(resp.Containers, listedContainer(rec).(*runtimeapi.Container))
				}
				if _, err := proto.Marshal(resp); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
