//go:build integration

package unpack

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// zeros returns an endless stream of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// compressed is an archive with many zeros after its end. Compressed they need almost no space.
func compressed(t *testing.T, archive []byte, trailer int64) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(archive); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(z, io.LimitReader(zeros{}, trailer)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestZerosBehindTheEndOfALayer: a layer of a few kilobytes made the helper decompress 40 GiB of
// zeros. A little padding is valid, and is part of the digest.
func TestZerosBehindTheEndOfALayer(t *testing.T) {
	b := newBench(t)
	archive := b.tar(imagetest.Layer{{Path: "a", Content: []byte("a")}})
	_, err := b.run(compressed(t, archive, 2<<30))
	if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "follow the end") {
		t.Errorf("2 GiB behind the end: %v", err)
	}
	b = newBench(t)
	result, err := b.run(compressed(t, archive, 1<<20))
	if err != nil || result.DiffID == "" {
		t.Errorf("1 MiB of padding: %v", err)
	}
}

// TestLayersAreBounded: the unpacked size of a layer is limited, for any content.
func TestLayersAreBounded(t *testing.T) {
	b := newBench(t)
	name := b.path("blob")
	if err := os.WriteFile(name, compressed(t, b.tar(imagetest.Layer{{Path: "a", Content: make([]byte, 4<<20)}}), 0), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int64{1 << 20, 8 << 20} {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.runner.Run(context.Background(), Job{Upper: b.path("upper"), LowerRoot: b.root, MaxBytes: 1 << 30, MaxLayer: limit}, f, nil)
		f.Close()
		if refused := errors.Is(err, errs.Invalid) && strings.Contains(err.Error(), "max_layer_gib"); refused != (limit < 4<<20) || err != nil && !refused {
			t.Errorf("a layer of 4 MiB with a limit of %d: %v", limit, err)
		}
	}
}
