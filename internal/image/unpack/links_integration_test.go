//go:build integration

package unpack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// victim is a directory of the host that links of a layer point to.
func victim(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kept"), []byte("host"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// untouched checks that no layer has changed the host's directory.
func untouched(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the host's directory has %v, %v", entries, err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "kept")); err != nil || string(data) != "host" {
		t.Errorf("the host's file: %q, %v", data, err)
	}
}

// TestLinksThatChangeWhileALayerIsUnpacked tests the race of CVE-2025-47290. Between two checks, a
// directory becomes a link to the host's files. Another process does it here, and so does the layer
// itself.
func TestLinksThatChangeWhileALayerIsUnpacked(t *testing.T) {
	host := victim(t)
	b := newBench(t)
	layer := imagetest.Layer{{Path: "d", Dir: true}, {Path: "other", Symlink: host}}
	for i := range 2000 {
		layer = append(layer, imagetest.File{Path: fmt.Sprintf("d/%d", i), Content: []byte("layer"), Raw: true})
		if i%100 == 99 {
			layer = append(layer,
				imagetest.File{Path: "swap", Symlink: host, Raw: true}, imagetest.File{Path: "swap/new", Content: []byte("layer"), Raw: true},
				imagetest.File{Path: "swap", Dir: true, Raw: true}, imagetest.File{Path: "swap/kept", Content: []byte("layer"), Raw: true})
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	swapped := make(chan int, 1)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			_ = unix.Renameat2(unix.AT_FDCWD, b.path("upper/d"), unix.AT_FDCWD, b.path("upper/other"), unix.RENAME_EXCHANGE)
		}
		swapped <- n
	}()
	data := b.tar(layer)
	for range 20 { // most stop early because of what they find
		if _, err := b.run(data); err != nil {
			t.Logf("the layer that was raced: %v", err)
		}
	}
	stop()
	if n := <-swapped; n == 0 {
		t.Error("nothing was swapped")
	}
	untouched(t, host)
}

// TestSystemPathsAsLinks: images may contain /dev, /proc, /sys and /etc/mtab as links (runc
// CVE-2023-27561 and similar ones, CRI-O CVE-2024-5154). The links are unpacked unchanged, and
// files below them stay in the layer.
func TestSystemPathsAsLinks(t *testing.T) {
	host := victim(t)
	b := newBench(t)
	layer := imagetest.Layer{{Path: "etc", Dir: true}, {Path: "etc/mtab", Symlink: filepath.Join(host, "kept")}}
	for _, name := range []string{"dev", "proc", "sys", "run"} {
		layer = append(layer, imagetest.File{Path: name, Symlink: host})
	}
	for _, name := range []string{"dev/kept", "proc/self", "sys/kept", "run/new", "etc/mtab"} {
		layer = append(layer, imagetest.File{Path: name, Content: []byte("layer"), Raw: true})
	}
	if _, err := b.run(b.tar(layer)); err != nil {
		t.Logf("refused: %v", err)
	}
	untouched(t, host)
	for _, name := range []string{"dev", "proc"} {
		if target, err := os.Readlink(b.path("upper", name)); err == nil && target != host {
			t.Errorf("%s leads to %s", name, target)
		}
	}
}
