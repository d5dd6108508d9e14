// Package growing reads the file of a download while it is written. It knows neither registries nor who unpacks a layer.
package growing

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// MinSize is the size of the smallest layers that are read while they are fetched. A smaller one is there before a process
// that reads it has started.
const MinSize = 2 << 20

// File is the file of a download that others read while it is written. Nobody has compared the bytes with the digest of the
// blob yet: what is made from them counts only if the blob is in the store at the end, and Once is true. Its methods are safe
// for concurrent use. End and Close do nothing with a nil File.
type File struct {
	size int64

	mu sync.Mutex
	// changed is closed with the next change, nil if nobody waits for one.
	changed chan struct{}
	// begun is how many times the download has begun.
	begun int
	data  *os.File
	// has is how many bytes the file has from its beginning, without gaps.
	has int64
	// ended is set when no more bytes come.
	ended bool
}

// New returns a File for a download of size bytes. The caller closes it when nobody reads it any more.
func New(size int64) *File { return &File{size: size} }

// Layers returns a File for each layer that is large enough, nil for the others. close closes them.
func Layers(layers []imagespec.Descriptor) (files []*File, closeAll func()) {
	files = make([]*File, len(layers))
	for i, layer := range layers {
		if layer.Size >= MinSize {
			files[i] = New(layer.Size)
		}
	}
	return files, func() {
		for _, f := range files {
			f.Close()
		}
	}
}

// Begin notes that the download begins. What is read of one that begins a second time is of no use.
func (f *File) Begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.begun++; f.begun > 1 {
		f.end()
	}
}

// Follow returns a writer that writes to w, whose file is data, and has the first bytes. It takes the file. From now on
// others can read what is written.
func (f *File) Follow(w content.Writer, data *os.File, has int64) content.Writer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || f.data != nil {
		data.Close()
		return w
	}
	f.data, f.has = data, has
	f.change()
	return &writer{w, f}
}

// writer counts what is written.
type writer struct {
	content.Writer
	file *File
}

// Write implements io.Writer.
func (w *writer) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.file.add(n)
	return n, err
}

// Truncate implements content.Writer. Readers cannot use what they have read: it may differ from the blob.
func (w *writer) Truncate(size int64) error {
	w.file.Begin()
	return w.Writer.Truncate(size)
}

func (f *File) add(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.has += int64(n)
	f.change()
}

// change wakes all who wait. f.mu is held.
func (f *File) change() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// End notes that no more bytes come: the blob is in the store, or the download has failed. Readers get the bytes that are
// there, and an error if these are not all.
func (f *File) End() {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end()
}

// end is End. f.mu is held.
func (f *File) end() {
	f.ended = true
	f.change()
}

// Close closes the file.
func (f *File) Close() {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end()
	if f.data != nil {
		f.data.Close()
		f.data = nil
	}
}

// Begun waits until the download has written bytes. It is false if the download has ended, or ctx: then the blob is to be
// read from the store, if at all.
func (f *File) Begun(ctx context.Context) bool {
	_, has, err := f.await(ctx, 0)
	f.mu.Lock()
	defer f.mu.Unlock()
	return err == nil && has < f.size && !f.ended
}

// Once reports whether the download has begun a single time, and has written all bytes: if the blob is in the store now, what
// was read is the blob.
func (f *File) Once() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begun == 1 && f.has == f.size
}

// ErrEnded is the error of readers that have not got all bytes when the download ends, or begins again.
var ErrEnded = errors.New("the download has ended")

// await waits until the file has more bytes than given, and returns it and how many it has. The error is ErrEnded, or the
// cause of ctx.
func (f *File) await(ctx context.Context, than int64) (data *os.File, has int64, err error) {
	for {
		f.mu.Lock()
		data, has = f.data, f.has
		again, ended := f.begun > 1 || f.data == nil, f.ended
		if f.changed == nil {
			f.changed = make(chan struct{})
		}
		changed := f.changed
		f.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return nil, has, context.Cause(ctx)
		case has > than && !again:
			return data, has, nil
		case ended:
			return nil, has, ErrEnded
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}
