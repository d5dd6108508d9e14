package intake

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// entry is one of a tar archive.
type entry struct {
	name, content string
	header        tar.Header
}

func archiveOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := e.header
		h.Name, h.Mode = e.name, 0o600
		if h.Typeflag == 0 {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(e.content))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(out.Bytes(), []byte(unknownSparse), []byte("GNU.sparse."))
}

// unknownSparse stands for the records of a sparse file, which package tar reads and does not write.
const unknownSparse = "XNU.sparse."

// sparseOfPAX is one byte that stands for a terabyte.
func sparseOfPAX(name string) entry {
	return entry{name: name, content: "x", header: tar.Header{Format: tar.FormatPAX, PAXRecords: map[string]string{
		unknownSparse + "numblocks": "1", unknownSparse + "map": "0,1", unknownSparse + "size": "1099511627776",
	}}}
}

func file(name, content string) entry { return entry{name: name, content: content} }

func special(name string, kind byte, target string) entry {
	return entry{name: name, header: tar.Header{Typeflag: kind, Linkname: target}}
}

const config = `{"rootfsImage":"sha256:aa","rootfsImageRef":"x@sha256:bb"}`

func taken(t *testing.T, dir string, entries ...entry) (*Contents, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "archive.tar")
	if err := os.WriteFile(path, archiveOf(t, entries...), 0o600); err != nil {
		t.Fatal(err)
	}
	return FromFile(t.Context(), path, dir)
}

// TestOnlyWhatIsRestoredIsTaken: the log, the spec and other parts of an archive are not even written.
func TestOnlyWhatIsRestoredIsTaken(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "in")
	c, err := taken(t, dir, special("checkpoint/", tar.TypeDir, ""), file("config.dump", config), file("spec.dump", `{"mounts":[{}]}`), file("dump.log", "x"),
		file("./checkpoint/core-1.img", "core"), file("bind.mounts", "[]"), file("io.kubernetes.cri-o.LogPath", "log"), file("artifacts/x", "y"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Image != "sha256:aa" || c.ImageRef != "x@sha256:bb" {
		t.Errorf("contents %+v", c)
	}
	var names []string
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if !d.IsDir() {
			names = append(names, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(names, " "); got != "checkpoint/core-1.img config.dump" {
		t.Errorf("written: %s", got)
	}
}

// TestHostileArchives: an entry that is not plain content is refused by its name, and nothing outside is touched.
func TestHostileArchives(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	for name, c := range map[string]struct {
		entries []entry
		words   string
	}{
		"a link in the place of the log":  {[]entry{special("io.kubernetes.cri-o.LogPath", tar.TypeSymlink, "/etc/shadow")}, `"io.kubernetes.cri-o.LogPath" of the archive: it is neither`},
		"a link in the place of an image": {[]entry{special("checkpoint/core-1.img", tar.TypeSymlink, outside)}, `"checkpoint/core-1.img"`},
		"another name of a file":          {[]entry{special("checkpoint/core-1.img", tar.TypeLink, "/etc/shadow")}, `"checkpoint/core-1.img"`},
		"a device":                        {[]entry{{name: "checkpoint/sda", header: tar.Header{Typeflag: tar.TypeBlock, Devmajor: 8}}}, `"checkpoint/sda"`},
		"a directory that is a link":      {[]entry{special("checkpoint", tar.TypeSymlink, "/tmp"), file("checkpoint/x", "y")}, `"checkpoint"`},
		"a name that leads out":           {[]entry{file("checkpoint/../../outside", "x")}, "leads out"},
		"an absolute name":                {[]entry{file(outside, "x")}, "leads out"},
		"an image that is there twice":    {[]entry{file("checkpoint/a.img", "x"), file("./checkpoint/a.img", "y")}, "it is there twice"},
		"a description that is huge":      {[]entry{file("config.dump", strings.Repeat(" ", maxText+1))}, `"config.dump"`},
		"a long name":                     {[]entry{file("checkpoint/"+strings.Repeat("n", 300), "x")}, "too long"},
		"no description":                  {nil, `"config.dump" of the archive: it is missing`},
		"a sparse file of PAX":            {[]entry{sparseOfPAX("checkpoint/pages-1.img")}, `"checkpoint/pages-1.img" of the archive: it is a sparse file`},
		"a sparse file of GNU":            {[]entry{special("checkpoint/pages-1.img", tar.TypeGNUSparse, "")}, "the archive: "},
		"a description that is none":      {[]entry{file("config.dump", "[")}, `"config.dump"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := taken(t, filepath.Join(t.TempDir(), "in"), c.entries...)
			if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v, want %q", err, c.words)
			}
			if _, err := os.Lstat(outside); err == nil {
				t.Errorf("%s was written", outside)
			}
		})
	}
	if _, err := FromFile(t.Context(), "/no/such/archive.tar", filepath.Join(t.TempDir(), "in")); !errors.Is(err, errs.NotFound) {
		t.Errorf("no archive: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link.tar")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		t.Fatal(err)
	}
	if _, err := FromFile(t.Context(), link, filepath.Join(t.TempDir(), "in")); !errors.Is(err, errs.Invalid) {
		t.Errorf("a link: %v", err)
	}
}

// TestAHugeEntryIsRefusedBeforeItIsRead: the header alone says how large it is.
func TestAHugeEntryIsRefusedBeforeItIsRead(t *testing.T) {
	in, err := begin(t.Context(), filepath.Join(t.TempDir(), "in"))
	if err != nil {
		t.Fatal(err)
	}
	err = in.file("checkpoint/pages-1.img", in.room+1, nil)
	if !errors.Is(err, errs.Exhausted) || !strings.Contains(err.Error(), "checkpoint/pages-1.img") {
		t.Errorf("%v", err)
	}
}

// TestUnpackedArchives: in the directory of an image, links and devices are refused as well.
func TestUnpackedArchives(t *testing.T) {
	for name, c := range map[string]struct {
		make  func(dir string) error
		words string
	}{
		"whole": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "checkpoint", "core-1.img"), []byte("core"), 0o600)
		}, ""},
		"an image": {func(dir string) error {
			return os.Symlink("/etc/shadow", filepath.Join(dir, "checkpoint", "core-1.img"))
		}, `"checkpoint/core-1.img"`},
		"changes": {func(dir string) error { return os.Symlink("/etc/shadow", filepath.Join(dir, "rootfs-diff.tar")) }, `"rootfs-diff.tar"`},
		"images": {func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "checkpoint")), os.Symlink("/etc", filepath.Join(dir, "checkpoint")))
		}, `"checkpoint"`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			err := errors.Join(os.Mkdir(filepath.Join(dir, "checkpoint"), 0o700), os.WriteFile(filepath.Join(dir, "config.dump"), []byte(config), 0o600), c.make(dir))
			if err != nil {
				t.Fatal(err)
			}
			_, err = FromDirectory(t.Context(), dir, filepath.Join(t.TempDir(), "in"))
			if c.words == "" && err != nil || c.words != "" && (err == nil || !strings.Contains(err.Error(), c.words)) {
				t.Errorf("%v, want %q", err, c.words)
			}
		})
	}
}

// TestHostileChanges: what is new in a root filesystem stays in it, and has no devices and no deletions of layers.
func TestHostileChanges(t *testing.T) {
	for name, c := range map[string]struct {
		entry entry
		words string
	}{
		"a device":                   {entry{name: "dev/sda", header: tar.Header{Typeflag: tar.TypeBlock, Devmajor: 8}}, `rootfs-diff.tar: "dev/sda": it is a device`},
		"a name that leads out":      {file("../../etc/passwd", "x"), "leads out"},
		"an absolute name":           {file("/etc/passwd", "x"), "leads out"},
		"a link to a file outside":   {special("x", tar.TypeLink, "../../etc/shadow"), "leads out"},
		"a deletion of a layer":      {file("etc/.wh.passwd", ""), "deletes something"},
		"an opaque directory":        {file("etc/.wh..wh..opq", ""), "deletes something"},
		"a sparse file":              {sparseOfPAX("x"), `rootfs-diff.tar: "x" of the archive: it is a sparse file`},
		"directories in one another": {file(strings.Repeat("d/", maxDepth+1)+"f", "x"), "directories in one another"},
	} {
		t.Run(name, func(t *testing.T) {
			contents, err := taken(t, filepath.Join(t.TempDir(), "in"), file("config.dump", config), file("rootfs-diff.tar", string(archiveOf(t, c.entry))))
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err = contents.Changes(t.Context()); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v, want %q", err, c.words)
			}
		})
	}
}

// TestDelete: names are deleted in the root filesystem, through its links, and nowhere else.
func TestDelete(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	for _, path := range []string{filepath.Join(root, "gone"), filepath.Join(root, "stays"), filepath.Join(outside, "victim")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	for deleted, words := range map[string]string{
		`["/gone","/missing/x"]`: "", `["/link/victim"]`: "link/victim", `["/../x"]`: "not a name", `["/"]`: "not a name", `{}`: "deleted.files",
	} {
		contents, err := taken(t, filepath.Join(t.TempDir(), "in"), file("config.dump", config), file("deleted.files", deleted))
		if err != nil {
			t.Fatal(err)
		}
		if err = contents.Delete(t.Context(), root); words == "" && err != nil || words != "" && (err == nil || !strings.Contains(err.Error(), words)) {
			t.Errorf("%s: %v, want %q", deleted, err, words)
		}
	}
	if _, err := os.Lstat(filepath.Join(root, "gone")); err == nil {
		t.Error("a deleted file is there")
	}
	for _, path := range []string{filepath.Join(root, "stays"), filepath.Join(outside, "victim")} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
}

// FuzzArchive: whatever an archive has, it is refused as bad or as too large, or what is taken is complete; nothing is written
// beside the directory.
func FuzzArchive(f *testing.F) {
	f.Add(archiveOf(f, file("config.dump", config), file("checkpoint/core-1.img", "core"), file("deleted.files", `["/x"]`),
		file("rootfs-diff.tar", string(archiveOf(f, file("x", "y"), special("l", tar.TypeSymlink, "/etc"))))))
	f.Add(archiveOf(f, file("config.dump", config), sparseOfPAX("checkpoint/pages-1.img")))
	f.Add(archiveOf(f, special("checkpoint", tar.TypeSymlink, "/tmp"), file("checkpoint/../../x", "y")))
	f.Fuzz(func(t *testing.T, data []byte) {
		top := t.TempDir()
		path, dir := filepath.Join(top, "archive.tar"), filepath.Join(top, "in")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		contents, err := FromFile(t.Context(), path, dir)
		if err == nil {
			_, err := os.Stat(filepath.Join(dir, configName))
			if err != nil {
				t.Error(err)
			}
			changes, _, err := contents.Changes(t.Context())
			if changes != nil {
				changes.Close()
			}
			checkBlame(t, err)
		}
		checkBlame(t, err)
		if entries, err := os.ReadDir(top); err != nil || len(entries) > 2 {
			t.Errorf("beside the directory: %v, %v", entries, err)
		}
	})
}

// checkBlame fails for an error that does not blame the archive.
func checkBlame(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, errs.Invalid) && !errors.Is(err, errs.Exhausted) {
		t.Errorf("%v", err)
	}
}
