//go:build integration

package background

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// TestLargeTreesDoNotDelaySmallOnes: small trees are removed while a large tree, which is first in
// the order, still exists.
func TestLargeTreesDoNotDelaySmallOnes(t *testing.T) {
	dir := t.TempDir()
	trash := NewTrash(dir, NewGroup(), slog.New(slog.DiscardHandler))
	trash.Slice = 2 * time.Millisecond
	trees := map[string]int{"aaa-large": 3000}
	for i := range 10 {
		trees[fmt.Sprint("small", i)] = 10
	}
	for name, files := range trees {
		if err := imagetest.ManyFiles(filepath.Join(dir, name), files); err != nil {
			t.Fatal(err)
		}
	}
	removed := removals(t, dir)
	trash.Empty(t.Context())
	if names := removed(); len(names) != len(trees) || names[len(names)-1] != "aaa-large" {
		t.Errorf("removed in the order %q: the small trees have waited for the large one", names)
	}
}

// removals returns a function that lists what has been removed from a directory since then, in that order.
func removals(t *testing.T, dir string) func() []string {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_DELETE); err != nil {
		t.Fatal(err)
	}
	return func() (names []string) {
		t.Helper()
		buf := make([]byte, 64<<10)
		n, err := unix.Read(fd, buf)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		for buf = buf[:max(n, 0)]; len(buf) > 0; {
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[12:]))
			names = append(names, unix.ByteSliceToString(buf[unix.SizeofInotifyEvent:end]))
			buf = buf[end:]
		}
		return names
	}
}
