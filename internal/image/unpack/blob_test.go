package unpack

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestSmallLayers: one processor is for small files alone, not for a layer whose size nobody knows.
func TestSmallLayers(t *testing.T) {
	name := filepath.Join(t.TempDir(), "layer")
	for size, want := range map[int64]bool{0: true, smallLayer: true, smallLayer + 1: false} {
		if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		layer, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := isSmall(layer); got != want {
			t.Errorf("a layer of %d bytes is small: %v", size, got)
		}
		layer.Close()
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if isSmall(r) {
		t.Error("a pipe is small")
	}
}

// TestProgressIsAtMostTheSize: a child that sets the offset behind the end of the layer does not make the progress absurd.
func TestProgressIsAtMostTheSize(t *testing.T) {
	layer, err := os.CreateTemp(t.TempDir(), "layer")
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	if err := layer.Truncate(10); err != nil {
		t.Fatal(err)
	}
	if _, err := layer.Seek(1<<40, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	progress := make(chan int64, 1)
	stop := watch(layer, func(n int64) {
		select {
		case progress <- n:
		default:
		}
	})
	defer stop()
	if n := <-progress; n != 10 {
		t.Errorf("%d of 10 bytes are read", n)
	}
}
