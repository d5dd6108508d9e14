//go:build integration

package unpack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest/hostileimage"
	"github.com/berthrun/berth/internal/require"
)

const (
	// corpusMemory and corpusDisk bound what the helper takes for a case, in MiB, unless the case says otherwise. The
	// memory is that of its cgroup, with the page cache and the kernel's own.
	corpusMemory, corpusDisk = 64, 16
	// corpusError bounds the text of an error, in bytes: it becomes an event of a pod.
	corpusError = 1024
	// corpusTimeout only ends a test that hangs.
	corpusTimeout = 5 * time.Minute
)

// hostileLayer is one row of the corpus.
type hostileLayer struct {
	// name says what the layer has, lesson where others were hit.
	name, lesson string
	// layer makes the blob. outside is a directory of the host.
	layer func(t *testing.T, outside string) []byte
	// refused is in the error. If it is "", the layer is unpacked, and inside says what is made of it, for the page.
	refused, inside string
	// kind of the error: Invalid unless set.
	kind error
	// check looks at what was unpacked.
	check func(t *testing.T, upper string)
	// job changes the job.
	job func(*Job)
	// memory and disk are the bounds in MiB, 0 for the usual ones.
	memory, disk int64
	// once is set where the form in which deletions are kept makes no difference.
	once bool
	// long cases are for runs by hand.
	long bool
}

// TestHostileLayers unpacks layers that were made to harm. Each is refused by an error with the name of its entry, or
// unpacked without harm. Nothing outside of the layer's directory is made, changed or read.
func TestHostileLayers(t *testing.T) {
	cases := hostileLayers()
	hostileTable(t, cases, false)
	rows := [][]string{{"a layer with", "seen in", "berth"}}
	for _, c := range cases {
		rows = append(rows, []string{c.name, c.lesson, hostileimage.Does(c.refused, c.inside)})
	}
	hostileimage.Page(t, "../../../docs/hostile-images.md", "## Layers", rows)
}

// hostileTable unpacks the cases, in both forms that berth has for deletions, and prints what became of each.
func hostileTable(t *testing.T, cases []hostileLayer, long bool) {
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "layer\tseen in\toutcome\tpeak memory\tdisk")
	for _, c := range cases {
		if c.long != long {
			continue
		}
		for _, files := range []bool{false, true} {
			form := "overlay"
			if files && c.once {
				continue
			}
			if files {
				form = "files"
			}
			t.Run(c.name+"/"+form, func(t *testing.T) { fmt.Fprintln(table, c.name+"\t"+c.lesson+"\t"+c.try(t, files)) })
		}
	}
	table.Flush()
	t.Logf("\n%s", text.String())
}

// try unpacks the layer, and returns the rest of its row.
func (c hostileLayer) try(t *testing.T, files bool) string {
	b := newBench(t)
	outside := filepath.Join(b.root, "outside")
	hostileimage.Decoy(t, outside)
	hostileimage.Decoy(t, b.path("lower"))
	data := c.layer(t, outside)
	if err := os.WriteFile(b.path("blob"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	layer, err := os.Open(b.path("blob"))
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	// The helper may read the layer below: a directory that the new layer does not describe gets its owner and mode from there.
	watched := hostileimage.Watch(t, []string{b.root}, []string{b.path("upper"), b.path("blob")})
	job := Job{Upper: b.path("upper"), LowerRoot: b.root, Lower: []string{"lower"}, MaxBytes: 1 << 30, WhiteoutFiles: files}
	if c.job != nil {
		c.job(&job)
	}
	ctx, stop := context.WithTimeout(t.Context(), corpusTimeout)
	defer stop()
	result, err := b.runner.Run(ctx, job, layer, nil)
	if err == nil && result.NeedsFiles {
		b.again(t, layer)
		job.Whole = true
		result, err = b.runner.Run(ctx, job, layer, nil)
	}
	for _, difference := range watched.Differences(t) {
		t.Errorf("outside of the layer: %s", difference)
	}
	c.judge(t, b.path("upper"), result, err)
	memory, disk := b.peak(), diskOf(t, b.path("upper"))
	if limit := orElse(c.memory, corpusMemory); memory > limit<<20 {
		t.Errorf("the helper took %d MiB of memory, at most %d are its due", memory>>20, limit)
	}
	if limit := orElse(c.disk, corpusDisk); disk > limit<<20 {
		t.Errorf("the layer took %d MiB of disk, at most %d are its due", disk>>20, limit)
	}
	outcome := "unpacked"
	if err != nil {
		outcome = fmt.Sprintf("refused: %.90s", err)
	}
	return fmt.Sprintf("%s\t%d KiB\t%d KiB", outcome, memory>>10, disk>>10)
}

// judge compares the outcome with that of the row.
func (c hostileLayer) judge(t *testing.T, upper string, result Result, err error) {
	t.Helper()
	kind := c.kind
	if kind == nil {
		kind = errs.Invalid
	}
	switch {
	case c.refused == "" && err != nil:
		t.Errorf("refused: %.1000v", err)
	case c.refused == "" && result.DiffID == "":
		t.Error("no digest")
	case c.refused != "" && (!errors.Is(err, kind) || !strings.Contains(err.Error(), c.refused)):
		t.Errorf("error %.1000v, want kind %v and %q", err, kind, c.refused)
	case err != nil && len(err.Error()) > corpusError:
		t.Errorf("the error has %d bytes: %.1000v", len(err.Error()), err)
	case err == nil && c.check != nil:
		c.check(t, upper)
	}
}

// peak is the most memory that the helpers of the bench have taken so far, 0 where the kernel does not count it.
func (b *bench) peak() int64 {
	for _, name := range []string{"memory.max_usage_in_bytes", "memory.peak"} {
		if data, err := os.ReadFile(filepath.Join(b.runner.Cgroups.Dir(), name)); err == nil {
			n, _ := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
			return n
		}
	}
	return 0
}

// diskOf is what the files below a directory take, in bytes.
func diskOf(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		bytes += st.Blocks * 512
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return bytes
}

// again prepares the bench for another run with the same layer.
func (b *bench) again(t *testing.T, layer *os.File) {
	t.Helper()
	_, err := layer.Seek(0, io.SeekStart)
	if err := errors.Join(err, os.RemoveAll(b.path("upper")), os.Mkdir(b.path("upper"), 0o755)); err != nil {
		t.Fatal(err)
	}
}

func orElse(n, otherwise int64) int64 {
	if n == 0 {
		return otherwise
	}
	return n
}

// TestTheCorpusSeesHarm: the checks of TestHostileLayers find a file that was read, changed or made, and one more link to
// it.
func TestTheCorpusSeesHarm(t *testing.T) {
	require.Root(t)
	for name, harm := range map[string]func(dir string) error{
		"read":    func(dir string) error { _, err := os.ReadFile(filepath.Join(dir, "secret")); return err },
		"changed": func(dir string) error { return os.WriteFile(filepath.Join(dir, "secret"), []byte("of the HOST\n"), 0) },
		"mode":    func(dir string) error { return os.Chmod(filepath.Join(dir, "empty"), 0o777) },
		"linked":  func(dir string) error { return os.Link(filepath.Join(dir, "secret"), filepath.Join(dir, "..", "link")) },
		"made":    func(dir string) error { return os.WriteFile(filepath.Join(dir, "dir", "new"), nil, 0o600) },
		"removed": func(dir string) error { return os.Remove(filepath.Join(dir, "dir", "kept")) },
	} {
		dir := filepath.Join(t.TempDir(), "watched")
		if name == "read" && !hostileimage.SeesReads(t, t.TempDir()) {
			continue
		}
		hostileimage.Decoy(t, dir)
		watched := hostileimage.Watch(t, []string{dir}, nil)
		if list := watched.Differences(t); len(list) > 0 {
			t.Errorf("untouched: %q", list)
		}
		if err := harm(dir); err != nil {
			t.Fatal(err)
		}
		if list := watched.Differences(t); len(list) == 0 {
			t.Errorf("%s: not seen", name)
		}
	}
}
