package users

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
)

// entry is a file of a container: a link if target is not "".
type entry struct {
	text, target string
	dir          bool
	other        fs.FileMode // of another type of file
	isLost       bool        // a link that the engine cannot follow
}

// reader returns a Reader of an engine whose containers have files, by path.
func reader(t *testing.T, files map[string]entry) *Reader {
	t.Helper()
	fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{
		"GET /containers/c/archive": func(w http.ResponseWriter, r *http.Request) {
			path := r.URL.Query().Get("path")
			file, ok := files[path]
			if !ok {
				fakeengine.Fail(http.StatusNotFound, "Could not find the file "+path+" in container c")(w, r)
				return
			}
			if file.isLost {
				fakeengine.Fail(http.StatusInternalServerError, "too many links")(w, r)
				return
			}
			serve(t, w, file)
		},
		"HEAD /containers/c/archive": func(w http.ResponseWriter, r *http.Request) {
			file, ok := files[r.URL.Query().Get("path")]
			if !ok {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			if file.isLost {
				w.WriteHeader(http.StatusInternalServerError) // without a text, as every answer to HEAD
				return
			}
			stat(t, w, file)
		},
	}})
	client, err := api.New(api.Options{Endpoint: fake.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return New(client)
}

// stat answers as an engine does: in a header.
func stat(t *testing.T, w http.ResponseWriter, file entry) {
	mode := file.other
	switch {
	case file.target != "":
		mode = fs.ModeSymlink
	case file.dir:
		mode = fs.ModeDir
	}
	text, err := json.Marshal(container.PathStat{Name: "file", Mode: mode, LinkTarget: file.target})
	if err != nil {
		t.Error(err)
	}
	w.Header().Set("X-Docker-Container-Path-Stat", base64.StdEncoding.EncodeToString(text))
}

// serve answers as an engine does: the stat, and an archive.
func serve(t *testing.T, w http.ResponseWriter, file entry) {
	stat(t, w, file)
	header := &tar.Header{Name: "file", Typeflag: tar.TypeReg, Size: int64(len(file.text)), Mode: 0o644}
	if file.target != "" {
		header = &tar.Header{Name: "file", Typeflag: tar.TypeSymlink, Linkname: "elsewhere"}
	}
	if file.dir {
		header = &tar.Header{Name: "file/", Typeflag: tar.TypeDir}
	}
	if file.other != 0 {
		t.Error("the engine waits for the writer of a pipe")
	}
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	if err := writer.WriteHeader(header); err != nil {
		t.Error(err)
	}
	if _, err := writer.Write([]byte(file.text)); err != nil {
		t.Error(err)
	}
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
	_, _ = w.Write(archive.Bytes()) // the reader of a long file may have left
}

// chain is a chain of links from one path to another.
func chain(from, to string, links int) map[string]entry {
	files := map[string]entry{to: {text: "reached"}}
	at := from
	for i := range links - 1 {
		next := fmt.Sprintf("/link%d", i)
		files[at] = entry{target: next}
		at = next
	}
	files[at] = entry{target: to}
	return files
}

func TestRead(t *testing.T) {
	long := strings.Repeat("x", ocispec.MaxUserFile+100)
	for name, c := range map[string]struct {
		files  map[string]entry
		passwd string
		absent bool
	}{
		"a file":          {map[string]entry{"/etc/passwd": {text: "root:x:0:0\n"}}, "root:x:0:0\n", false},
		"an empty file":   {map[string]entry{"/etc/passwd": {}}, "", false},
		"no file":         {nil, "", true},
		"a directory":     {map[string]entry{"/etc/passwd": {dir: true}}, "", true},
		"a link":          {chain("/etc/passwd", "/usr/passwd", 1), "reached", false},
		"a chain":         {chain("/etc/passwd", "/usr/passwd", maxLinks-1), "reached", false},
		"too long a one":  {chain("/etc/passwd", "/usr/passwd", maxLinks), "", true},
		"a loop":          {map[string]entry{"/etc/passwd": {target: "/etc/passwd"}}, "", true},
		"a lost link":     {map[string]entry{"/etc/passwd": {isLost: true}}, "", true},
		"a link to none":  {map[string]entry{"/etc/passwd": {target: "/gone"}}, "", true},
		"too long a file": {map[string]entry{"/etc/passwd": {text: long}}, long[:ocispec.MaxUserFile+1], false},
	} {
		t.Run(name, func(t *testing.T) {
			r := reader(t, c.files)
			got, err := r.Read(t.Context(), "image", "c")
			if err != nil || string(got.Passwd) != c.passwd || (got.Passwd == nil) != c.absent || got.Group != nil {
				t.Errorf("passwd of %d bytes (nil: %v), group %q, %v", len(got.Passwd), got.Passwd == nil, got.Group, err)
			}
			if kept, known := r.Kept("image"); !known || !bytes.Equal(kept.Passwd, got.Passwd) {
				t.Errorf("kept: %v, %v", kept, known)
			}
		})
	}
}

// TestNoFiles: an engine that starts a container reads these files itself, and would never end with a
// pipe.
func TestNoFiles(t *testing.T) {
	for _, kind := range []fs.FileMode{fs.ModeNamedPipe, fs.ModeDevice | fs.ModeCharDevice, fs.ModeDevice} {
		for _, path := range []string{"/etc/passwd", "/etc/group"} {
			r := reader(t, map[string]entry{path: {target: "/elsewhere"}, "/elsewhere": {other: kind}})
			_, err := r.Read(t.Context(), "image", "c")
			if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "/elsewhere of the image is a pipe or a device") {
				t.Errorf("%s of type %v: %v", path, kind, err)
			}
			if _, known := r.Kept("image"); known {
				t.Errorf("%s of type %v is kept", path, kind)
			}
		}
	}
}

// TestReadFails: what could not be read is an error, and is not kept as an image without users.
func TestReadFails(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"an error":          fakeengine.Fail(http.StatusInternalServerError, "no such disk"),
		"a damaged archive": func(w http.ResponseWriter, _ *http.Request) { damaged(w) },
	} {
		t.Run(name, func(t *testing.T) {
			fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{"GET /containers/c/archive": answer}})
			client, err := api.New(api.Options{Endpoint: fake.Endpoint})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			r := New(client)
			if _, err := r.Read(t.Context(), "image", "c"); err == nil || !strings.Contains(err.Error(), "/etc/passwd of the image") {
				t.Errorf("error %v, want one about /etc/passwd", err)
			}
			if _, known := r.Kept("image"); known {
				t.Error("it is kept")
			}
		})
	}
}

func damaged(w http.ResponseWriter) {
	w.Header().Set("X-Docker-Container-Path-Stat", base64.StdEncoding.EncodeToString([]byte("{}")))
	_, _ = w.Write(bytes.Repeat([]byte("x"), 1024)) // no header of an archive
}

// TestKeptImages: the files of at most maxImages images are kept.
func TestKeptImages(t *testing.T) {
	r := reader(t, nil)
	for i := range maxImages + 3 {
		id := fmt.Sprint(i)
		if _, err := r.Read(t.Context(), id, "c"); err != nil {
			t.Fatal(err)
		}
		if _, known := r.Kept(id); !known {
			t.Fatalf("image %s is not kept", id)
		}
	}
	if len(r.kept) != maxImages {
		t.Errorf("%d images are kept, want %d", len(r.kept), maxImages)
	}
}

// TestBare: the container that is read has nothing of a pod, and the name and the labels by which it
// is found.
func TestBare(t *testing.T) {
	got := Bare("name", "sha256:1", map[string]string{"a": "b"})
	if got.Name != "name" || got.Config.Image != "sha256:1" || got.Config.Labels["a"] != "b" {
		t.Errorf("%+v", got)
	}
	if h := got.HostConfig; len(h.Mounts)+len(h.Binds)+len(h.VolumesFrom) != 0 || h.NetworkMode != "none" || got.Config.WorkingDir != "/" {
		t.Errorf("%+v", got.HostConfig)
	}
}
