package meter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// TestLargeLayersDoNotDelayOthers: containers with more files than one turn can count keep every
// walker busy. Other containers are measured all the same.
func TestLargeLayersDoNotDelayOthers(t *testing.T) {
	place := t.TempDir()
	begun := make(chan struct{}, 4*walkers)
	d := newDisks(func(ctx context.Context, id string, pace sysfile.Pace) (image.Usage, error) {
		usage := image.Usage{Mountpoint: place, At: time.Now()}
		if id == "small" {
			return usage, pace(ctx)
		}
		begun <- struct{}{}
		for { // it never returns by itself
			if err := pace(ctx); err != nil {
				return usage, err
			}
		}
	})
	defer d.close()
	large := map[string]Target{}
	for _, id := range []string{"a", "b", "c", "d"} {
		large[id] = Target{Writes: true}
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := d.of(short, large); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("sizes of layers that take forever: %v", err)
	}
	for range walkers {
		<-begun
	}
	d.refresh("small", diskAge)
	d.mu.Lock()
	measuring := d.entries["small"].measuring
	d.mu.Unlock()
	select {
	case <-measuring:
	case <-time.After(20 * time.Second):
		t.Fatal("large layers have all turns, and a small one has none")
	}
	if d.entries["small"].written == nil {
		t.Error("the small layer has no size")
	}
}

// TestHungMeasurementsDelayNoWalk: what waits for a snapshotter before it reads a tree has no turn.
func TestHungMeasurementsDelayNoWalk(t *testing.T) {
	place := t.TempDir()
	d := newDisks(func(ctx context.Context, id string, pace sysfile.Pace) (image.Usage, error) {
		if id == "walked" {
			return image.Usage{Mountpoint: place, At: time.Now()}, pace(ctx)
		}
		<-ctx.Done()
		return image.Usage{}, ctx.Err()
	})
	defer d.close()
	for i := range 2 * walkers {
		d.refresh(fmt.Sprint("hung", i), diskAge)
	}
	sizes, err := d.of(t.Context(), map[string]Target{"walked": {Writes: true}})
	if err != nil || sizes["walked"] == nil {
		t.Errorf("a layer beside those of a snapshotter that hangs: %+v, %v", sizes["walked"], err)
	}
}

// TestWalksTakeAShareOfACore: two walkers sleep for nine tenths of the time that large layers take.
func TestWalksTakeAShareOfACore(t *testing.T) {
	d := newDisks(nil)
	defer d.close()
	w := &walk{d: d, begun: time.Now()}
	if !w.take() {
		t.Fatal("no turn")
	}
	defer w.leave()
	begin, worked := time.Now(), time.Duration(0)
	for range 5 {
		at := time.Now()
		for time.Since(at) <= walkSlice { // the work of one turn
			if err := w.pace(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		worked += walkSlice
		if err := w.pace(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if share := float64(worked) / float64(time.Since(begin)); share > 0.15 {
		t.Errorf("walks have %.0f %% of the time", 100*share)
	}
	w.turn, w.begun = time.Now().Add(-time.Hour), time.Now().Add(-time.Hour)
	if err := w.pace(t.Context()); !errors.Is(err, errEnough) {
		t.Errorf("a walk of an hour: %v", err)
	}
}

// TestSizeAfterAnInterruptedWalk: the size is the part that was counted. So a container that
// creates directories all the time has a size, too.
func TestSizeAfterAnInterruptedWalk(t *testing.T) {
	place := t.TempDir()
	d := newDisks(func(context.Context, string, sysfile.Pace) (image.Usage, error) {
		return image.Usage{Mountpoint: place, Bytes: 7, At: time.Now()}, errEnough
	})
	defer d.close()
	all, err := d.of(t.Context(), map[string]Target{"c": {Writes: true}})
	if err != nil || all["c"] == nil || all["c"].Bytes != 7 {
		t.Errorf("%+v, %v", all["c"], err)
	}
}

// TestDevicesOfManyLayers: what is kept of a device does not grow with the layers on it, which may each be a
// directory of its own.
func TestDevicesOfManyLayers(t *testing.T) {
	place := t.TempDir()
	d := newDisks(func(_ context.Context, id string, _ sysfile.Pace) (image.Usage, error) {
		dir := filepath.Join(place, id)
		return image.Usage{Mountpoint: dir, At: time.Now()}, os.Mkdir(dir, 0o700)
	})
	defer d.close()
	layers := map[string]Target{"a": {Writes: true}, "b": {Writes: true}, "c": {Writes: true}}
	sizes, err := d.of(t.Context(), layers)
	if err != nil {
		t.Fatal(err)
	}
	for id := range layers {
		if sizes[id] == nil || sizes[id].Device == "" || sizes[id].Device != sizes["a"].Device {
			t.Errorf("layer %s: %+v", id, sizes[id])
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.devices) != 1 {
		t.Errorf("devices of one mount: %v", d.devices)
	}
}

// TestWritten: the sum of all containers counts each of them, also one whose walk was not complete, and none that is gone. It
// waits for no walk.
func TestWritten(t *testing.T) {
	place, walk := t.TempDir(), make(chan struct{})
	m := &Meter{disks: newDisks(func(_ context.Context, id string, _ sysfile.Pace) (image.Usage, error) {
		<-walk
		usage := image.Usage{Mountpoint: place, Bytes: 7, Inodes: 2, At: time.Now()}
		return usage, map[string]error{"whole": nil, "large": errEnough, "gone": errs.NotFound}[id]
	})}
	defer m.disks.close()
	ids := []string{"whole", "large", "gone"}
	if sum := m.Written(ids); sum.Bytes != 0 || sum.Inodes != 0 || sum.At.IsZero() {
		t.Errorf("before a walk: %+v", sum)
	}
	close(walk)
	m.disks.done.Wait()
	if sum := m.Written(ids); sum.Bytes != 14 || sum.Inodes != 4 {
		t.Errorf("after the walks: %+v", sum)
	}
}
