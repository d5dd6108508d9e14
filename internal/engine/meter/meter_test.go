package meter

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

func TestRatesComeFromBackgroundReadings(t *testing.T) {
	cpu := uint64(0)
	gone := false
	r := newRates(func(cgroup.Paths) (uint64, error) {
		if gone {
			return 0, fmt.Errorf("cgroup: %w", errs.NotFound)
		}
		return cpu, nil
	})
	start := time.Now().Add(-2 * time.Second)
	r.watch("c", nil, start, 0)
	if _, ok := r.rate("c"); ok {
		t.Error("one reading has no rate")
	}
	r.watch("c", nil, time.Now(), 5) // a read for a request does not affect the samples
	cpu = 2_000_000
	r.sampleAll()
	if rate, ok := r.rate("c"); !ok || rate < 900_000 || rate > 1_000_000 {
		t.Errorf("rate %d, %v; want a little less than 1000000 a second", rate, ok)
	}
	cpu = 1
	r.sampleAll()
	if _, ok := r.rate("c"); ok {
		t.Error("a rate of a counter that went back")
	}
	gone = true
	r.sampleAll()
	if len(r.watched) != 0 {
		t.Error("what has gone is watched still")
	}
}

// TestRatesAreKnownAfterOneWindow: a container that is sampled from its start has a rate before the
// first request. The rate excludes earlier usage of its cgroup.
func TestRatesAreKnownAfterOneWindow(t *testing.T) {
	cpu, err := uint64(7e9), error(nil)
	m := &Meter{rates: newRates(func(cgroup.Paths) (uint64, error) { return cpu, err })}
	m.Watch("pod", nil)
	m.rates.watched["pod"].at = time.Now().Add(-time.Second)
	cpu += 500_000_000
	m.rates.sampleAll()
	if rate, ok := m.rates.rate("pod"); !ok || rate == 0 || rate > 500_000_000 {
		t.Errorf("rate %d, %v; want at most half a core", rate, ok)
	}
	err = fmt.Errorf("cgroup: %w", errs.NotFound)
	m.Watch("none", nil)
	if m.rates.watched["none"] != nil {
		t.Error("what has no cgroup is watched")
	}
}

// TestThereIsADefaultInterface: a kubelet crashes if the network has no default interface.
func TestThereIsADefaultInterface(t *testing.T) {
	for _, test := range []struct {
		links []engine.Link
		want  string
	}{
		{nil, ""},
		{[]engine.Link{}, ""},
		{[]engine.Link{{Name: "net1"}, {Name: "eth0"}}, "eth0"},
		{[]engine.Link{{Name: "net1"}, {Name: "net2"}}, "net1"},
	} {
		usage := networkUsage(&engine.Figures{Links: test.links})
		if got := usage.GetDefaultInterface().GetName(); got != test.want || (usage == nil) != (test.want == "") || usage != nil && len(usage.Interfaces) != 1 {
			t.Errorf("%v: %v, want the default interface %q", test.links, usage, test.want)
		}
	}
}

func TestRatesStop(t *testing.T) {
	read := make(chan struct{}, 1)
	r := newRates(func(cgroup.Paths) (uint64, error) {
		select {
		case read <- struct{}{}:
		default:
		}
		return 0, nil
	})
	r.watch("c", nil, time.Now(), 0)
	r.start(time.Millisecond)
	<-read
	r.close()
}

// TestSizesAreMeasuredInTheBackground: a request waits for the first size. Later requests get the
// old size at once while a new one is measured.
func TestSizesAreMeasuredInTheBackground(t *testing.T) {
	place := t.TempDir()
	hold := make(chan struct{})
	var measured atomic.Int64
	d := newDisks(func(ctx context.Context, id string, _ sysfile.Pace) (image.Usage, error) {
		if id == "gone" {
			return image.Usage{}, fmt.Errorf("rootfs: %w", errs.NotFound)
		}
		n := measured.Add(1)
		if n > 1 {
			select {
			case <-hold:
			case <-ctx.Done():
				return image.Usage{}, ctx.Err()
			}
		}
		// The size is old from the start, so that it is measured again at once.
		return image.Usage{Bytes: n, Mountpoint: place, At: time.Now().Add(-time.Hour)}, nil
	})
	defer d.close()
	of := func(id string) *engine.Written {
		written, err := d.of(t.Context(), map[string]Target{id: {Writes: true}, "pod": {}})
		if err != nil {
			t.Fatal(err)
		}
		return written[id]
	}
	if w := of("c"); w == nil || w.Bytes != 1 || w.Capacity == 0 || w.Device == "" {
		t.Fatalf("first: %+v", w)
	}
	if w := of("c"); w.Bytes != 1 {
		t.Errorf("while it is measured anew: %+v, want the old size", w)
	}
	d.mu.Lock()
	again := d.entries["c"].measuring
	d.mu.Unlock()
	close(hold)
	<-again
	if w := of("c"); w.Bytes < 2 {
		t.Errorf("then: %+v, want the new size", w)
	}
	if w := of("gone"); w != nil {
		t.Errorf("of what has gone: %+v", w)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.of(ended, map[string]Target{"c": {Writes: true}}); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that has ended: %v", err)
	}
}
