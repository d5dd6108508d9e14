package podlog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

func entry(n int, stream, tag, text string) string {
	return fmt.Sprintf("2026-01-01T00:00:%02d.000000000Z %s %s %s\n", n, stream, tag, text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestCopy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, entry(1, "stdout", "F", "one")+entry(2, "stderr", "F", "two")+"garbage\n"+
		entry(3, "stdout", "P", "thr")+entry(3, "stdout", "F", "ee")+entry(4, "stdout", "F", ""))
	for name, c := range map[string]struct {
		opts     Options
		out, err string
	}{
		"all":        {Options{Tail: -1}, "one\nthree\n\n", "two\n"},
		"tail":       {Options{Tail: 3}, "three\n\n", ""},
		"none":       {Options{Tail: 0}, "", ""},
		"since":      {Options{Tail: -1, Since: time.Date(2026, 1, 1, 0, 0, 2, 0, time.UTC)}, "three\n\n", "two\n"},
		"timestamps": {Options{Tail: 3, Timestamps: true}, "2026-01-01T00:00:03Z three\n2026-01-01T00:00:04Z \n", ""},
	} {
		var out, errOut bytes.Buffer
		if err := Copy(t.Context(), path, c.opts, &out, &errOut); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if out.String() != c.out || errOut.String() != c.err {
			t.Errorf("%s: got %q and %q", name, out.String(), errOut.String())
		}
	}
}

func TestNoLog(t *testing.T) {
	err := Copy(t.Context(), filepath.Join(t.TempDir(), "nosuch"), Options{}, nil, nil)
	if !errors.Is(err, errs.NotFound) {
		t.Errorf("got %v", err)
	}
}

// lines passes the printed lines to the test.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func TestFollowThroughRotationToTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	out, end, done := make(lines, 16), make(chan struct{}), make(chan error, 1)
	go func() { done <- Copy(t.Context(), path, Options{Tail: -1, Ended: end}, out, out) }()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-out:
			if got != want+"\n" {
				t.Fatalf("got %q, want %q", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%q did not come", want)
		}
	}
	write(t, path, entry(1, "stdout", "F", "before"))
	expect("before")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(t, path+".1", entry(2, "stdout", "F", "last of the old file"))
	expect("last of the old file")
	write(t, path, entry(3, "stdout", "F", "first of the new file"))
	expect("first of the new file")
	// The line was written before the exit was reported, so it must be read.
	write(t, path, strings.Repeat(entry(4, "stdout", "F", "more"), 3))
	close(end)
	for range 3 {
		expect("more")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
