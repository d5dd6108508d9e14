package sysfile

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// FileWatch reports which of many files was written to, and in which of many directories something changed, with
// one descriptor.
type FileWatch struct {
	file *os.File

	mu   sync.Mutex
	keys map[int32]string
	ids  map[string]int32
	// pending are changes that were read and not yet returned.
	pending []int32
}

// NewFileWatch makes a watch on nothing.
func NewFileWatch() (*FileWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot watch files: %w", sysfd.Exhausted(err))
	}
	return &FileWatch{file: os.NewFile(uintptr(fd), "inotify"), keys: map[int32]string{}, ids: map[string]int32{}}, nil
}

// Add watches path; key is what Next returns. The watch ends by itself when the
// file is removed.
func (w *FileWatch) Add(path, key string) error { return w.add(path, key, unix.IN_MODIFY) }

// dirEvents are those of names that come and go, of files whose writer has closed them, and of the directory itself.
const dirEvents = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_CLOSE_WRITE |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// AddDir watches the directory at path in place of another one that key has: its names, the files in it when a writer
// closes them, and whether the directory itself is removed or renamed. The watch ends when the directory is removed.
// Errors: fs.ErrNotExist, and unix.ENOTDIR where path is no directory.
func (w *FileWatch) AddDir(path, key string) error { return w.add(path, key, dirEvents) }

func (w *FileWatch) add(path, key string, events uint32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return sysfd.With(w.file, func(fd int) error {
		id, err := unix.InotifyAddWatch(fd, path, events)
		if err != nil {
			return fmt.Errorf("cannot watch %s: %w", path, sysfd.Exhausted(err))
		}
		if former, ok := w.ids[key]; ok && former != int32(id) {
			delete(w.keys, former)
			// It fails only when the directory, and with it the watch, is gone.
			_, _ = unix.InotifyRmWatch(fd, uint32(former))
		}
		w.keys[int32(id)], w.ids[key] = key, int32(id)
		return nil
	})
}

// Remove ends the watch of key; nothing when there is none.
func (w *FileWatch) Remove(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id, ok := w.ids[key]
	if !ok {
		return
	}
	delete(w.ids, key)
	delete(w.keys, id)
	// It fails only when the file, and with it the watch, is gone.
	_ = sysfd.With(w.file, func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(id))
		return err
	})
}

// Next waits until a file was written to, or something changed in a directory. One caller at a time.
func (w *FileWatch) Next(ctx context.Context) (key string, err error) {
	buf := make([]byte, 64*unix.SizeofInotifyEvent)
	for {
		if key, ok := w.next(); ok {
			return key, nil
		}
		var n int
		var readErr error
		err := sysfd.Await(ctx, nil, w.file, func(fd int) bool {
			n, readErr = unix.Read(fd, buf)
			return readErr != unix.EAGAIN && readErr != unix.EINTR
		})
		if err != nil {
			return "", err
		}
		if readErr != nil {
			return "", fmt.Errorf("cannot read file changes: %w", readErr)
		}
		w.parse(buf[:n])
	}
}

func (w *FileWatch) next() (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.pending) > 0 {
		id := w.pending[0]
		w.pending = w.pending[1:]
		if key, ok := w.keys[id]; ok {
			return key, true
		}
	}
	return "", false
}

func (w *FileWatch) parse(buf []byte) {
	const lenOffset = 12
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(buf) >= unix.SizeofInotifyEvent {
		w.pending = append(w.pending, int32(binary.NativeEndian.Uint32(buf)))
		name := int(binary.NativeEndian.Uint32(buf[lenOffset:]))
		buf = buf[min(len(buf), unix.SizeofInotifyEvent+name):]
	}
}

// Close ends the watch.
func (w *FileWatch) Close() error { return w.file.Close() }
