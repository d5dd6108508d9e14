package sysfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// treeOf makes files of "dir/", "file=content" and "link->target".
func treeOf(t *testing.T, files ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, file := range files {
		var err error
		if name, is := strings.CutSuffix(file, "/"); is {
			err = os.MkdirAll(filepath.Join(root, name), 0o755)
		} else if name, content, is := strings.Cut(file, "="); is {
			err = errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755), os.WriteFile(filepath.Join(root, name), []byte(content), 0o600))
		} else if name, target, is := strings.Cut(file, "->"); is {
			err = os.Symlink(target, filepath.Join(root, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// filesOf lists a tree as treeOf takes it, without directories that have something in them.
func filesOf(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name := strings.TrimPrefix(path, root+"/")
		switch {
		case entry.IsDir():
			if below, err := os.ReadDir(path); err != nil || len(below) > 0 {
				return err
			}
			all = append(all, name+"/")
		case entry.Type() == os.ModeSymlink:
			target, err := os.Readlink(path)
			all = append(all, name+"->"+target)
			return err
		default:
			data, err := os.ReadFile(path)
			all = append(all, name+"="+string(data))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// TestCopyLayers: the copy has what the layers show together, where each says by files what it deletes.
func TestCopyLayers(t *testing.T) {
	for name, test := range map[string]struct {
		layers [][]string // topmost first
		want   []string
	}{
		"one":                       {[][]string{{"a=1", "d/b=2", "l->a", "e/"}}, []string{"a=1", "d/b=2", "e/", "l->a"}},
		"a file over a file":        {[][]string{{"a=2"}, {"a=1", "b=1"}}, []string{"a=2", "b=1"}},
		"directories merge":         {[][]string{{"d/x=2"}, {"d/y=1", "d/x=1"}}, []string{"d/x=2", "d/y=1"}},
		"a deletion":                {[][]string{{".wh.a="}, {"a=1", "b=1"}}, []string{"b=1"}},
		"of a directory":            {[][]string{{".wh.d="}, {"d/a=1", "b=1"}}, []string{"b=1"}},
		"and made again":            {[][]string{{".wh.a=", "a=2"}, {"a=1"}}, []string{"a=2"}},
		"a directory made again":    {[][]string{{".wh.d=", "d/n=2"}, {"d/a=1"}}, []string{"d/n=2"}},
		"opaque":                    {[][]string{{"d/.wh..wh..opq=", "d/n=2"}, {"d/a=1", "b=1"}}, []string{"b=1", "d/n=2"}},
		"an opaque root":            {[][]string{{".wh..wh..opq=", "n=2"}, {"d/a=1", "b=1"}}, []string{"n=2"}},
		"opaque in the middle":      {[][]string{{"d/t=3"}, {"d/.wh..wh..opq=", "d/m=2"}, {"d/a=1"}}, []string{"d/m=2", "d/t=3"}},
		"a deletion in the middle":  {[][]string{{"d/t=3"}, {".wh.d="}, {"d/a=1"}}, []string{"d/t=3"}},
		"a file in the middle":      {[][]string{{"d/t=3"}, {"d=2"}, {"d/a=1"}}, []string{"d/t=3"}},
		"a link in the middle":      {[][]string{{"d/t=3"}, {"d->e"}, {"d/a=1"}}, []string{"d/t=3"}},
		"a file over a directory":   {[][]string{{"d=2"}, {"d/a=1"}}, []string{"d=2"}},
		"of nothing":                {[][]string{{".wh.a=", "d/.wh.b="}, {"c=1"}}, []string{"c=1", "d/"}},
		"deleted and made below":    {[][]string{{"x=4"}, {".wh.a="}, {"a=2"}, {".wh.a="}, {"a=1"}}, []string{"x=4"}},
		"a directory with a prefix": {[][]string{{".wh.d/a=2"}, {"d/b=1"}}, []string{".wh.d/a=2", "d/b=1"}},
		"deep":                      {[][]string{{"a/b/c/d=2"}, {"a/b/.wh.c="}, {"a/b/c/e=1", "a/f=1"}}, []string{"a/b/c/d=2", "a/f=1"}},
	} {
		var layers []string
		for _, layer := range test.layers {
			layers = append(layers, treeOf(t, layer...))
		}
		to := t.TempDir()
		if err := CopyLayers(t.Context(), layers, to, LayersCopy{}); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := filesOf(t, to); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		for i, layer := range layers {
			has, err := HasWhiteoutFiles(layer)
			if want := slices.ContainsFunc(test.layers[i], func(f string) bool { return strings.Contains("/"+f, "/.wh.") && strings.HasSuffix(f, "=") }); err != nil || has != want {
				t.Errorf("%s: layer %d has deletions that are files: %v, %v", name, i, has, err)
			}
		}
	}
}

// TestCopyLayersDirectories: directories alone, with their owners and modes.
func TestCopyLayersDirectories(t *testing.T) {
	low, high := treeOf(t, "a=1", "d/x=1", "d/e/"), treeOf(t, "d/.wh.e=", "d/f/")
	if err := os.Chmod(filepath.Join(high, "d"), 0o1711); err != nil { //nolint:gosec // of a test
		t.Fatal(err)
	}
	to := t.TempDir()
	if err := CopyLayers(t.Context(), []string{high, low}, to, LayersCopy{Directories: true}); err != nil {
		t.Fatal(err)
	}
	if got := filesOf(t, to); !slices.Equal(got, []string{"d/f/"}) {
		t.Errorf("copied: %q", got)
	}
	if a, b := modeOf(t, filepath.Join(high, "d")), modeOf(t, filepath.Join(to, "d")); a != b {
		t.Errorf("mode %v, want %v", b, a)
	}
}

func modeOf(t *testing.T, path string) os.FileMode {
	t.Helper()
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fi.Mode()
}

// TestCopyLayersEnds: a copy ends with its context, and one of too many directories in one another is refused.
func TestCopyLayersEnds(t *testing.T) {
	layer := treeOf(t, "a=1", "b=1", "c=1")
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	err := CopyLayers(ctx, []string{layer}, t.TempDir(), LayersCopy{Progress: func(Copied) { cancel(enough) }})
	if !errors.Is(err, enough) {
		t.Errorf("cancelled: %v", err)
	}
	deep := treeOf(t, strings.Repeat("d/", 1000))
	if err := CopyLayers(t.Context(), slices.Repeat([]string{deep}, 9), t.TempDir(), LayersCopy{}); !errors.Is(err, errs.Invalid) {
		t.Errorf("9 layers of 1000 directories: %v", err)
	}
}

// TestCopyLayersHoldsFewNames: names count while their directory is copied, those of all layers together.
func TestCopyLayersHoldsFewNames(t *testing.T) {
	low, high := treeOf(t, "a/1=", "a/2=", "a/3=", "b/1=", "b/2="), treeOf(t, "a/4=", "a/.wh.1=", "b/3=")
	for held, want := range map[int]bool{9: true, 8: false} { // 4 of the roots, 5 of a
		err := CopyLayers(t.Context(), []string{high, low}, t.TempDir(), LayersCopy{maxHeld: held})
		if fits := err == nil; fits != want || !fits && (!errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), low+"/a: ")) {
			t.Errorf("at most %d names: %v", held, err)
		}
	}
}

// TestCopyContentKeepsHoles: what the source does not have on disk, the copy does not have either.
func TestCopyContentKeepsHoles(t *testing.T) {
	dir := t.TempDir()
	from, err := os.Create(filepath.Join(dir, "from"))
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	const size = 64 << 20
	for at, text := range map[int64]string{0: "begin", 20 << 20: "middle"} {
		if _, err := from.WriteAt([]byte(text), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := from.Truncate(size); err != nil {
		t.Fatal(err)
	}
	to, err := os.Create(filepath.Join(dir, "to"))
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	var copied int64
	if err := CopyContent(t.Context(), to, from, func(n int64) { copied += n }); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(to.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if copied != size || st.Size != size || st.Blocks*blockSize > 1<<20 {
		t.Errorf("%d bytes are reported, the copy has %d in %d blocks", copied, st.Size, st.Blocks)
	}
	text := make([]byte, 6)
	if _, err := to.ReadAt(text, 20<<20); err != nil || string(text) != "middle" {
		t.Errorf("in the middle: %q, %v", text, err)
	}
}
