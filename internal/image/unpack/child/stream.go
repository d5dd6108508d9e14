package child

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/berthrun/berth/internal/errs"
)

const (
	// The chunks in flight between decompression, digest and unpacking are small: most of the time a few of them are in use,
	// which fit into the cache of a processor, and the process of a small layer touches few new pages. There may be so many
	// that decompression goes on while the file system makes the others wait for some milliseconds.
	chunkSize  = 128 << 10
	chunkCount = 64
	// maxWindow is what a zstd frame may make us remember.
	maxWindow = 128 << 20
)

// stream is a decompressed layer. Decompression runs ahead in one goroutine and
// the digest is computed in another, so that both cores work while files are
// written.
type stream struct {
	ready chan *chunk
	// unused are the chunks that are free for the next use. room has a token for each of them, and for each that is not made
	// yet: there are chunkCount in all, so that no channel of chunks is ever full.
	mu     sync.Mutex
	unused []*chunk
	room   chan struct{}
	// stop ends the goroutines of a stream that is not read to its end.
	stop chan struct{}
	wg   sync.WaitGroup
	// current is the chunk that is being read, rest what is unread of it.
	current *chunk
	rest    []byte
	err     error
	// left is how many bytes may still be read; beyond says what is wrong with more.
	left   int64
	beyond error
	// counted, if set, gets the number of bytes that were read.
	counted *atomic.Int64

	sum    hash.Hash
	hashed chan struct{}
}

// chunk is a piece of the stream, with the error that came after it. Reader and hash
// each use it once.
type chunk struct {
	buffer []byte
	data   []byte
	err    error
	users  atomic.Int32
}

// done ends one use of a chunk.
func (s *stream) done(c *chunk) {
	if c.users.Add(-1) > 0 {
		return
	}
	s.mu.Lock()
	s.unused = append(s.unused, c)
	s.mu.Unlock()
	s.room <- struct{}{}
}

func newStream(r io.Reader) (*stream, error) {
	plain, err := decompress(r)
	if err != nil {
		return nil, err
	}
	s := &stream{
		ready:  make(chan *chunk, chunkCount),
		room:   make(chan struct{}, chunkCount),
		stop:   make(chan struct{}),
		sum:    sha256.New(),
		hashed: make(chan struct{}),
		left:   math.MaxInt64,
	}
	for range chunkCount {
		s.room <- struct{}{}
	}
	toHash := make(chan *chunk, chunkCount)
	s.wg.Add(2)
	go s.produce(plain, toHash)
	go s.hash(toHash)
	return s, nil
}

func (s *stream) produce(plain io.ReadCloser, toHash chan<- *chunk) {
	defer s.wg.Done()
	defer close(toHash)
	defer close(s.ready)
	defer plain.Close()
	for {
		c := s.next()
		if c == nil {
			return
		}
		n, err := io.ReadFull(plain, c.buffer)
		if errors.Is(err, io.ErrUnexpectedEOF) && n > 0 {
			// The layer ended or is truncated. The next read distinguishes them.
			err = nil
		}
		c.data, c.err = c.buffer[:n], err
		c.users.Store(2)
		toHash <- c
		s.ready <- c
		if err != nil {
			return
		}
	}
}

// next returns a chunk for the next use, nil when the stream is closed. It is the one that was used last, which is still in the
// cache of a processor.
func (s *stream) next() *chunk {
	select {
	case <-s.room:
	case <-s.stop:
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.unused) - 1
	if last < 0 {
		return &chunk{buffer: make([]byte, chunkSize)}
	}
	c := s.unused[last]
	s.unused = s.unused[:last]
	return c
}

func (s *stream) hash(chunks <-chan *chunk) {
	defer s.wg.Done()
	defer close(s.hashed)
	for c := range chunks {
		s.sum.Write(c.data)
		s.done(c)
	}
}

// Read gives the decompressed bytes.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.current != nil {
			s.done(s.current)
			s.current = nil
		}
		if s.err != nil {
			return 0, s.err
		}
		c, ok := <-s.ready
		if !ok {
			return 0, io.EOF
		}
		s.current, s.rest, s.err = c, c.data, c.err
	}
	if s.left <= 0 {
		return 0, s.beyond
	}
	n := copy(p[:min(int64(len(p)), s.left)], s.rest)
	s.rest = s.rest[n:]
	s.left -= int64(n)
	if s.counted != nil {
		s.counted.Add(int64(n))
	}
	return n, nil
}

// allow bounds what is read from now on, if there is no smaller bound.
func (s *stream) allow(bytes int64, beyond error) {
	if bytes < s.left {
		s.left, s.beyond = bytes, beyond
	}
}

// Digest reads to the end and returns the digest of all bytes.
func (s *stream) Digest() (string, error) {
	if _, err := io.Copy(io.Discard, s); err != nil {
		return "", err
	}
	<-s.hashed
	return "sha256:" + hex.EncodeToString(s.sum.Sum(nil)), nil
}

// Close ends the stream, read or not.
func (s *stream) Close() {
	close(s.stop)
	s.wg.Wait()
}

// decompress detects gzip, zstd and plain tar by their first bytes.
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
		// With goroutines of its own it takes half as long again. With little memory it moves the window once per megabyte.
		z, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(false))
		if err != nil {
			return nil, fmt.Errorf("cannot read the layer as zstd: %w: %w", err, errs.Invalid)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(buffered), nil
}

// isSkippableFrame reports whether magic starts a zstd frame without content, with
// which zstd:chunked layers may begin.
func isSkippableFrame(magic []byte) bool {
	return len(magic) == 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18})
}
