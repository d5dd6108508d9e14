//go:build integration

package nspool_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/engine/native/nspool"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

func TestNoNamespaceIsUsedTwice(t *testing.T) {
	require.Root(t)
	dir := t.TempDir()
	pool := nspool.New(3, nil)
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		seen = map[string]string{}
	)
	for i := range 20 {
		path := filepath.Join(dir, strconv.Itoa(i))
		t.Cleanup(func() {
			if err := sysns.RemoveNetNS(path); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if err := pool.Pin(path); err != nil {
				t.Error(err)
				return
			}
			err := sysns.InNetNS(path, func() error {
				inode, err := os.Readlink("/proc/thread-self/ns/net")
				mu.Lock()
				defer mu.Unlock()
				if other, used := seen[inode]; used {
					t.Errorf("%s is pinned at %s and %s", inode, other, path)
				}
				seen[inode] = path
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if f := pool.Figures(); f.Size != 3 || f.Hits+f.Misses != 20 {
		t.Errorf("%+v, want a size of 3, and 20 namespaces taken", f)
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
	last := filepath.Join(dir, "last")
	if err := pool.Pin(last); err != nil {
		t.Errorf("a closed pool makes one when asked: %v", err)
	}
	if err := sysns.RemoveNetNS(last); err != nil {
		t.Error(err)
	}
}

// TestPoolIsFullAgain: a pool makes what was taken, whether much of it is left or nothing.
func TestPoolIsFullAgain(t *testing.T) {
	require.Root(t)
	const size = 4
	dir := t.TempDir()
	pool := nspool.New(size, nil)
	full := func() {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); pool.Figures().Ready != size; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%+v, want %d ready", pool.Figures(), size)
			}
		}
	}
	for round, take := range []int{1, size} {
		full()
		for i := range take {
			path := filepath.Join(dir, fmt.Sprintf("%d-%d", round, i))
			t.Cleanup(func() {
				if err := sysns.RemoveNetNS(path); err != nil {
					t.Error(err)
				}
			})
			if err := pool.Pin(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	full()
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}
