package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/berthrun/berth/internal/errs"
)

func source(name string, collect func(ctx context.Context, add Add) error) Source {
	return Source{Name: name, Collect: collect}
}

// read unpacks a bundle.
func read(t *testing.T, archive io.Reader) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(archive)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for entries := tar.NewReader(zipped); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(entries)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(content)
	}
}

// TestWrite: secrets are hidden by the format of a file, faults are in the manifest, and a source that hangs holds up
// nothing.
func TestWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		defer close(goOn)
		sources := []Source{
			source("good", func(_ context.Context, add Add) error {
				return errors.Join(add("a.json", JSON, []byte(`{"token":"hunter2","id":"x"}`)), add("b.txt", Text, []byte("PASSWORD=hunter2 x")),
					add("c.toml", TOML, []byte("password = \"hunter2\"\n")), add("../../d", Binary, []byte("raw")))
			}),
			source("bad", func(context.Context, Add) error { return errors.New("no such host with password=hunter2") }),
			source("panics", func(context.Context, Add) error { panic("hunter2") }),
			source("hangs", func(ctx context.Context, add Add) error {
				<-goOn
				add("late", Text, nil)
				return nil
			}),
			source("last", func(_ context.Context, add Add) error { return add("logs/z", Text, []byte("end")) }),
		}
		var archive bytes.Buffer
		manifest, err := Write(t.Context(), &archive, "dir", "1.2.3", sources)
		if err != nil {
			t.Fatal(err)
		}
		files := read(t, &archive)
		for name, want := range map[string]string{"dir/a.json": `"id": "x"`, "dir/b.txt": " x", "dir/c.toml": "password", "dir/d": "raw", "dir/logs/z": "end"} {
			if !strings.Contains(files[name], want) || strings.Contains(files[name], "hunter2") {
				t.Errorf("%s is %q", name, files[name])
			}
		}
		var written Manifest
		if err := json.Unmarshal([]byte(files["dir/manifest.json"]), &written); err != nil || len(written.Missing) != len(manifest.Missing) || written.Version != "1.2.3" {
			t.Errorf("the manifest is %q, %v", files["dir/manifest.json"], err)
		}
		missing := map[string]string{}
		for _, lacks := range manifest.Missing {
			missing[lacks.Source] = lacks.Why
		}
		if len(missing) != 3 || !strings.Contains(missing["bad"], "no such host") || !strings.Contains(missing["hangs"], "not done after 15s") || missing["panics"] == "" {
			t.Errorf("missing are %q", missing)
		}
		if strings.Contains(files["dir/manifest.json"], "password=hunter2") {
			t.Error("the manifest has a secret")
		}
	})
}

// TestLimits: a long log keeps its end, other files their beginning, and the whole has a limit.
func TestLimits(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789abcde\n"), maxFile/16+1)
	copy(long, "FIRST")
	copy(long[len(long)-16:], "LAST")
	var archive bytes.Buffer
	manifest, err := Write(t.Context(), &archive, "dir", "v", []Source{
		source("long", func(_ context.Context, add Add) error {
			return errors.Join(add("logs/a", Text, long), add("b", Text, long), add("c", JSON, append([]byte(`{"token":"hunter2","x":"`), append(bytes.Repeat([]byte{'x'}, maxFile), `"}`...)...)))
		}),
		source("many", func(_ context.Context, add Add) error {
			return add("raw", Binary, make([]byte, maxTotal))
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	files := read(t, &archive)
	if a := files["dir/logs/a"]; len(a) > maxFile || strings.Contains(a, "FIRST") || !strings.Contains(a, "LAST") {
		t.Errorf("of the log %d bytes are there", len(a))
	}
	if b := files["dir/b"]; len(b) > maxFile || !strings.Contains(b, "FIRST") || strings.Contains(b, "LAST") {
		t.Errorf("of the file %d bytes are there", len(b))
	}
	if c := files["dir/c"]; strings.Contains(c, "hunter2") || len(c) > 100 {
		t.Errorf("of the JSON %d bytes are there", len(c))
	}
	if manifest.Files[0].Cut == 0 || manifest.Files[1].Cut == 0 || len(manifest.Missing) != 1 || !strings.Contains(manifest.Missing[0].Why, "a bundle at most") {
		t.Errorf("the manifest is %+v", manifest)
	}
}

// TestCancelled: a bundle that is cancelled is none.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := Write(ctx, io.Discard, "dir", "v", []Source{source("x", func(context.Context, Add) error {
		cancel(errs.Unavailable)
		return nil
	})})
	if !errors.Is(err, errs.Unavailable) {
		t.Errorf("got %v", err)
	}
}
