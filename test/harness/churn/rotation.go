package churn

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	corev1 "k8s.io/api/core/v1"
)

const rotationLines = 8000

// rotation: of a log that the kubelet rotates while it is written, each line is there
// once and in order, over all of its files.
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
	seen, err := p.awaitEnd(ctx, corev1.PodFailed, map[string]int32{"main": 5})
	if err != nil {
		return err
	}
	// One that could not be started, since berth was away, has no log.
	name := fmt.Sprintf("%d.log", statusOf(seen, "main").RestartCount)
	dir := filepath.Join(p.k.Logs(), fmt.Sprintf("%s_%s_%s", namespace, p.name, p.uid), "main")
	return p.poll(ctx, "the log to be whole", func(context.Context) error { // the last file may be compressed just now
		return checkRotated(filepath.Join(dir, name))
	})
}

func checkRotated(log string) error {
	files, err := filepath.Glob(log + ".*")
	if err != nil {
		return err
	}
	if len(files) < 2 {
		return fmt.Errorf("it was rotated %d times", len(files))
	}
	var parts []part
	for _, file := range append(files, log) {
		p, err := readLog(file)
		if err != nil {
			return err
		}
		parts = append(parts, p)
	}
	// Names tell the second of the rotation only, and there may be two in one.
	slices.SortFunc(parts, func(a, b part) int { return a.begun.Compare(b.begun) })
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
