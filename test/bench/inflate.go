package main

import (
	"bufio"
	stdgzip "compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
)

// The floor of a pull is an inflater alone, and an inflater whose output tar writes to disk. Neither fetches the layer,
// computes a digest, or keeps the blob.

// inflater is a command that inflates the file that is its last argument to its standard output.
type inflater struct {
	name string
	argv []string
}

// inflaters are those that this machine has.
func inflaters() (all []inflater) {
	for _, i := range []inflater{
		{"igzip", []string{"igzip", "-dc"}},
		{"unpigz", []string{"unpigz", "-c"}},
		{"gzip -d", []string{"gzip", "-dc"}},
		{"klauspost/compress, as berth", []string{"/proc/self/exe", "-inflate", "klauspost"}},
		{"Go's compress/gzip", []string{"/proc/self/exe", "-inflate", "go"}},
	} {
		if _, err := exec.LookPath(i.argv[0]); err == nil {
			all = append(all, i)
		}
	}
	return all
}

// inflateFile is the process of an inflater of Go.
func inflateFile(with, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 256<<10)
	var r io.Reader
	switch with {
	case "klauspost":
		r, err = gzip.NewReader(in)
	default:
		r, err = stdgzip.NewReader(in)
	}
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(os.Stdout, 256<<10)
	if _, err := io.Copy(struct{ io.Writer }{out}, r); err != nil {
		return err
	}
	return out.Flush()
}

// inflateAll measures all inflaters with the layer of a case. It is in the page cache.
func inflateAll(ctx context.Context, t *table, o options, r *registry, c pullCase) error {
	manifest, err := r.dir.manifest(c.tags[0])
	if err != nil {
		return err
	}
	blob, layer := r.dir.blob(manifest.Layers[0].Digest), c.name
	if err := readAll(blob); err != nil {
		return err
	}
	for _, i := range inflaters() {
		null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, i.argv[0], append(i.argv[1:], blob)...)
		cmd.Stdout = null
		err = t.timeFloor(cmd, "inflate with "+i.name+": "+layer)
		null.Close()
		if err != nil {
			return err
		}
	}
	for _, i := range inflaters() {
		if err := inflateToDisk(ctx, t, o, i, blob, layer); err != nil {
			return err
		}
	}
	return nil
}

// inflateToDisk measures an inflater and tar.
func inflateToDisk(ctx context.Context, t *table, o options, i inflater, blob, layer string) error {
	dir := filepath.Join(o.work, "floor-tar")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := dropCaches(); err != nil {
		return err
	}
	if err := readAll(blob); err != nil {
		return err
	}
	// /proc/self would be the shell.
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	argv := strings.ReplaceAll(strings.Join(i.argv, " "), "/proc/self/exe", exe)
	cmd := exec.CommandContext(ctx, "sh", "-c", argv+` "$1" | tar -xf - -C "$2"`, "sh", blob, dir)
	return t.timeFloor(cmd, "inflate with "+i.name+", and tar: "+layer)
}

// timeFloor runs a command, and adds its time and its CPU time to the column of the floor.
func (t *table) timeFloor(cmd *exec.Cmd, row string) error {
	cmd.Stderr = os.Stderr
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", row, err)
	}
	t.median(floorName, row, "s", time.Since(begin).Seconds())
	t.median(floorName, "CPU: "+row, "s", (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
	return nil
}

// noteFastest makes the fastest bare inflater the floor of the case with one layer, and names it.
func noteFastest(t *table, cases []pullCase) {
	at := slices.IndexFunc(cases, func(c pullCase) bool { return c.kind == singleCase })
	if at < 0 {
		return
	}
	layer := cases[at].name
	var fastest *row
	for _, r := range t.Rows {
		if strings.HasPrefix(r.Name, "inflate with ") && !strings.Contains(r.Name, ", and tar") &&
			(fastest == nil || quantile(r.Samples[floorName], 50) < quantile(fastest.Samples[floorName], 50)) {
			fastest = r
		}
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(fastest.Name, "inflate with "), ":")
	for _, sample := range fastest.Samples[floorName] {
		t.median(floorName, layer, "s", sample)
	}
	t.Notes = append(t.Notes, fmt.Sprintf("the fastest bare inflater is %s: it is the floor of %q", name, layer))
}
