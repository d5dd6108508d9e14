package unpack

import (
	"bufio"
	"bytes"
	_ "crypto/sha256" // for go-digest, which looks it up by name
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
)

const (
	chunkSize = 256 << 10
	// chunks in flight between decompression, digest and unpacking.
	chunkCount = 8
	// maxWindow is what a zstd frame may make us remember.
	maxWindow = 128 << 20
)

// stream is a decompressed layer. Decompression runs ahead in one goroutine and
// the digest is computed in another, so that both cores work while files are
// written.
type stream struct {
	ready chan chunk
	// stop ends the goroutines of a stream that is not read to its end.
	stop chan struct{}
	wg   sync.WaitGroup
	rest []byte
	err  error

	digester digest.Digester
	hashed   chan struct{}
}

// chunk is a piece of the stream, with the error that came after it.
type chunk struct {
	data []byte
	err  error
}

func newStream(r io.Reader) (*stream, error) {
	plain, err := decompress(r)
	if err != nil {
		return nil, err
	}
	s := &stream{
		ready:    make(chan chunk, chunkCount),
		stop:     make(chan struct{}),
		digester: digest.Canonical.Digester(),
		hashed:   make(chan struct{}),
	}
	toHash := make(chan []byte, chunkCount)
	s.wg.Add(2)
	go s.produce(plain, toHash)
	go s.hash(toHash)
	return s, nil
}

func (s *stream) produce(plain io.ReadCloser, toHash chan<- []byte) {
	defer s.wg.Done()
	defer close(toHash)
	defer close(s.ready)
	defer plain.Close()
	for {
		data := make([]byte, chunkSize)
		n, err := io.ReadFull(plain, data)
		if errors.Is(err, io.ErrUnexpectedEOF) && n > 0 {
			// Either the end of the layer, or a cut one: the next read tells.
			err = nil
		}
		c := chunk{data: data[:n], err: err}
		select {
		case toHash <- c.data:
		case <-s.stop:
			return
		}
		select {
		case s.ready <- c:
		case <-s.stop:
			return
		}
		if err != nil {
			return
		}
	}
}

func (s *stream) hash(chunks <-chan []byte) {
	defer s.wg.Done()
	defer close(s.hashed)
	for data := range chunks {
		s.digester.Hash().Write(data)
	}
}

// Read gives the decompressed bytes.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		c, ok := <-s.ready
		if !ok {
			return 0, io.EOF
		}
		s.rest, s.err = c.data, c.err
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// Digest reads to the end and returns the digest of all bytes.
func (s *stream) Digest() (digest.Digest, error) {
	if _, err := io.Copy(io.Discard, s); err != nil {
		return "", err
	}
	<-s.hashed
	return s.digester.Digest(), nil
}

// Close ends the stream, read or not.
func (s *stream) Close() {
	close(s.stop)
	s.wg.Wait()
}

// decompress tells gzip, zstd and plain tar apart by their first bytes.
func decompress(r io.Reader) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(r, chunkSize)
	magic, err := buffered.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("cannot read the layer: %w", err)
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		gz, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("cannot read the layer's gzip header: %w: %w", err, errs.Invalid)
		}
		return gz, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}), isSkippableFrame(magic):
		z, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(2))
		if err != nil {
			return nil, fmt.Errorf("cannot read the layer as zstd: %w: %w", err, errs.Invalid)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(buffered), nil
}

// isSkippableFrame tells whether magic starts a zstd frame without content, with
// which zstd:chunked layers may begin.
func isSkippableFrame(magic []byte) bool {
	return len(magic) == 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18})
}
