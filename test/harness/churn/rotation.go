package churn

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

const rotationLines = 8000

// rotation: the kubelet rotates a log while it is written. All of its files together have each line
// once and in order.
func rotation(ctx context.Context, p *pod) error {
	err := p.create(ctx, fmt.Sprintf(`
restartPolicy: Never
containers:
- name: main
  args:
  - "i=0; while [ $i -lt %d ]; do i=$((i+1)); echo line $i of a log that is rotated while it is written"
  - "[ $((i %% 200)) = 0 ] && sleep 0.5; done"
  - "exit 5"
`, rotationLines))
	if err != nil {
		return err
	}
	dir := filepath.Join(p.k.Logs(), fmt.Sprintf("%s_%s_%s", namespace, p.name, p.uid), "main")
	held := filepath.Join(p.dir, "held")
	if err := os.Mkdir(held, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(held)
	release := hold(dir, held)
	seen, err := p.awaitEnd(ctx, corev1.PodFailed, map[string]int32{"main": 5})
	if err := errors.Join(err, release()); err != nil {
		return err
	}
	// A container that could not start, because berth was down, has no log.
	name := fmt.Sprintf("%d.log", statusOf(seen, "main").RestartCount)
	written, err := readLogs(filepath.Join(held, name+"*"))
	if err != nil {
		return err
	}
	if err := checkRotated(written); err != nil {
		return fmt.Errorf("as it was written: %w", err)
	}
	if p.disruptedSince(p.made, kubeletAway()) && rotatedAtOnce(written) {
		return nil
	}
	return p.poll(ctx, "the log to be whole", func(context.Context) error { // the last file may be compressed just now
		left, err := readLogs(filepath.Join(dir, name+"*"))
		if err != nil {
			return err
		}
		return checkRotated(left)
	})
}

// rotatedAtOnce reports whether a log was rotated twice in one second, by two kubelets. Names of
// rotated files have the second, and a kubelet removes a file that has the same name as a
// compressed one, as the leftover of an interrupted rotation.
func rotatedAtOnce(written []part) bool {
	for i := 2; i < len(written); i++ {
		// Each begins with a line that may come half a second after the rotation.
		if written[i].begun.Sub(written[i-1].begun) < 1500*time.Millisecond {
			return true
		}
	}
	return false
}

// hold links every file of a directory of logs into another one, as NAME.INODE, until it is
// released. So the files keep their content, whatever a kubelet does to them.
func hold(dir, into string) (release func() error) {
	stop, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			err := link(dir, into)
			select {
			case <-stop:
				failed <- errors.Join(err, link(dir, into))
				return
			default:
			}
			if err != nil {
				failed <- err
				return
			}
			time.Sleep(50 * time.Millisecond) // the kubelet rotates seconds apart
		}
	}()
	return func() error {
		close(stop)
		return <-failed
	}
}

// link links the files that are in a directory of logs now.
func link(dir, into string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.log*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".gz") || strings.HasSuffix(file, ".tmp") {
			continue // the kubelet's own
		}
		fresh := filepath.Join(into, "new")
		if err := os.Link(file, fresh); errors.Is(err, fs.ErrNotExist) {
			continue // it has just been renamed
		} else if err != nil {
			return err
		}
		var seen unix.Stat_t
		if err := unix.Stat(fresh, &seen); err != nil {
			return err
		}
		name, _, _ := strings.Cut(filepath.Base(file), ".log")
		if err := os.Rename(fresh, filepath.Join(into, fmt.Sprintf("%s.log.%d", name, seen.Ino))); err != nil {
			return err
		}
		// A file that is already linked has two links: rename leaves both.
		if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// checkRotated fails unless the parts of a log have each of its lines once, in order.
func checkRotated(parts []part) error {
	if len(parts) < 3 {
		return fmt.Errorf("it was rotated %d times", len(parts)-1)
	}
	var files []string
	for _, p := range parts {
		files = append(files, filepath.Base(p.file))
	}
	next := 1
	for _, p := range parts {
		for _, line := range p.lines {
			if want := fmt.Sprintf("line %d of a log that is rotated while it is written", next); line != want {
				return fmt.Errorf("%s has %q, want %q; files: %q", p.file, line, want, files)
			}
			next++
		}
	}
	if next != rotationLines+1 {
		return fmt.Errorf("it ends before line %d", next)
	}
	return nil
}

// readLogs reads the files of one log, in the order in which they were written. Their names have
// only the second of the rotation, and there may be two in one second.
func readLogs(pattern string) ([]part, error) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	var parts []part
	for _, file := range files {
		p, err := readLog(file)
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	slices.SortFunc(parts, func(a, b part) int { return a.begun.Compare(b.begun) })
	return parts, nil
}

// part is one file of a log: its texts, and the time of the first.
type part struct {
	file  string
	begun time.Time
	lines []string
}

// readLog reads a CRI log, which may be compressed.
func readLog(path string) (p part, err error) {
	p.file = path
	file, err := os.Open(path)
	if err != nil {
		return p, err
	}
	defer file.Close()
	var content io.Reader = file
	if strings.HasSuffix(path, ".gz") {
		if content, err = gzip.NewReader(file); err != nil {
			return p, fmt.Errorf("%s: %w", path, err)
		}
	}
	for reader := crilog.NewReader(content); ; {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return p, nil
		}
		if err != nil {
			return p, fmt.Errorf("%s: %w", path, err)
		}
		if p.lines = append(p.lines, string(entry.Text)); len(p.lines) == 1 {
			p.begun = entry.Time
		}
	}
}
