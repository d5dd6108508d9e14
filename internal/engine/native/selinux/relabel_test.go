package selinux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// testAttribute is an attribute that every user may set on files and directories.
const testAttribute = "user.berth.label"

func makeTree(t *testing.T, dirs, files int) string {
	t.Helper()
	root := t.TempDir()
	for d := range dirs {
		dir := filepath.Join(root, fmt.Sprintf("d%d/sub", d))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for f := range files {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(f)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

func labelOf(t *testing.T, path string) string {
	t.Helper()
	value := make([]byte, 256)
	n, err := syscall.Getxattr(path, testAttribute, value)
	if errors.Is(err, syscall.ENODATA) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(value[:n])
}

// labelled counts the files with the label at and below root.
func labelled(t *testing.T, root, label string) (with, without int) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if labelOf(t, path) == label {
			with++
		} else {
			without++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return with, without
}

func TestRelabel(t *testing.T) {
	root := makeTree(t, 20, 30)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := NewRelabeller(testAttribute)
	if err := r.Relabel(t.Context(), root, "a:b:c:s0", nil); err != nil {
		t.Fatal(err)
	}
	if with, without := labelled(t, root, "a:b:c:s0"); with != 1+20*2+20*30 || without != 0 {
		t.Errorf("%d have the label, %d do not", with, without)
	}
	// If the root has the right label, no file is checked again.
	file := filepath.Join(root, "d0/sub/0")
	if err := syscall.Setxattr(file, testAttribute, []byte("own"), 0); err != nil {
		t.Fatal(err)
	}
	if err := r.Relabel(t.Context(), root+"/", "a:b:c:s0", nil); err != nil || labelOf(t, file) != "own" {
		t.Errorf("a volume that was right was walked again: %s, %v", labelOf(t, file), err)
	}
	if err := r.Relabel(t.Context(), root, "other", nil); err != nil || labelOf(t, file) != "other" {
		t.Errorf("another label: %s, %v", labelOf(t, file), err)
	}
	if err := r.Relabel(t.Context(), file, "single", nil); err != nil || labelOf(t, file) != "single" {
		t.Errorf("a file as volume: %s, %v", labelOf(t, file), err)
	}
	if labelOf(t, outside) != "" {
		t.Error("a file outside was labelled")
	}
}

// An interrupted relabel does not count as complete, and the next one completes it.
func TestRelabelIsEnded(t *testing.T) {
	root := makeTree(t, 10, 50)
	r := NewRelabeller(testAttribute)
	ended, end := context.WithCancel(t.Context())
	end()
	if err := r.Relabel(ended, root, "x", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: %v", err)
	}
	if err := r.Relabel(t.Context(), root, "x", nil); err != nil {
		t.Fatal(err)
	}
	if _, without := labelled(t, root, "x"); without != 0 {
		t.Errorf("%d files are without the label", without)
	}
	if len(r.slots) != 0 {
		t.Errorf("%d slots taken", len(r.slots))
	}
}

// Requests for one volume share the work.
func TestRelabelIsShared(t *testing.T) {
	root := makeTree(t, 10, 100)
	r := NewRelabeller(testAttribute)
	results := make(chan error)
	for i := range 16 {
		go func() {
			ctx := t.Context()
			if i%4 == 0 {
				ended, end := context.WithCancel(ctx)
				end()
				_ = r.Relabel(ended, root, "shared", nil) // it may have been done before
			}
			results <- r.Relabel(ctx, root, "shared", nil)
		}()
	}
	for range 16 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if _, without := labelled(t, root, "shared"); without != 0 {
		t.Errorf("%d files are without the label", without)
	}
}

func TestRelabelRefused(t *testing.T) {
	r := NewRelabeller(testAttribute)
	for _, path := range []string{"/", "/etc/", "/var//lib", "/usr"} {
		if err := r.Relabel(t.Context(), path, "x", nil); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "relabel failed") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := r.Relabel(t.Context(), filepath.Join(t.TempDir(), "gone"), "x", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a volume that is gone: %v", err)
	}
	deep := t.TempDir()
	path := deep
	for range maxDepth + 2 {
		path += "/d"
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.Relabel(t.Context(), deep, "x", nil); !errors.Is(err, errs.Invalid) {
		t.Errorf("too deep: %v", err)
	}
	if labelOf(t, deep) == "x" {
		t.Error("a volume that could not be labelled counts as done")
	}
}

// procfs takes no attributes.
func TestFileSystemsWithoutLabels(t *testing.T) {
	if err := NewRelabeller(testAttribute).Relabel(t.Context(), "/proc/self/task", "x", nil); err != nil {
		t.Error(err)
	}
}

// TestPanicEndsOneVolume: a panic fails the requests that wait for this volume, and no others.
func TestPanicEndsOneVolume(t *testing.T) {
	r := NewRelabeller(testAttribute)
	close(r.slots) // a send to it panics
	root := t.TempDir()
	for range 2 { // the second one must not wait for the first
		err := r.Relabel(t.Context(), root, "x", nil)
		if err == nil || !strings.Contains(err.Error(), "because of a fault in berth") || errs.Kind(err) != nil {
			t.Errorf("got %v", err)
		}
	}
}
