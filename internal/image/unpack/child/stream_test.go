package child

import (
	"bytes"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/opencontainers/go-digest"
)

// Chunks are reused, but never while a reader or a hash still uses them.
func TestStreamUsesItsChunksAgain(t *testing.T) {
	layer := make([]byte, 200*chunkSize+17)
	random := rand.NewChaCha8([32]byte{1})
	if _, err := random.Read(layer); err != nil {
		t.Fatal(err)
	}
	s, err := newStream(bytes.NewReader(layer))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	piece, at := make([]byte, chunkSize/3), 0
	for at < len(layer) {
		n, err := s.Read(piece)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(piece[:n], layer[at:at+n]) {
			t.Fatalf("other bytes than the layer's from %d", at)
		}
		at += n
	}
	got, err := s.Digest()
	if err != nil || got != digest.FromBytes(layer).String() {
		t.Errorf("digest %s, %v", got, err)
	}
	if n, err := s.Read(piece); n != 0 || err != io.EOF { //nolint:errorlint // required by io.Reader
		t.Errorf("after the end: %d, %v", n, err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 2*chunkCount*chunkSize {
		t.Errorf("a layer of %d bytes took %d", len(layer), used)
	}
}

// A stream that is not read to its end is closed all the same.
func TestStreamIsClosedUnread(t *testing.T) {
	for _, read := range []int{0, 1, chunkSize, 3 * chunkSize} {
		s, err := newStream(bytes.NewReader(make([]byte, 5*chunkCount*chunkSize)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(s, make([]byte, read)); err != nil {
			t.Error(err)
		}
		s.Close()
	}
}
