package imagetest

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
)

func TestArchiveIsDeterministic(t *testing.T) {
	spec := Spec{
		Name:   "docker.io/library/x:1",
		Layers: []Layer{{{Path: "/a/b", Content: []byte("x")}}},
		Files:  []File{{Path: "/bin/sh", Symlink: "busybox"}},
		Labels: map[string]string{"a": "1", "b": "2"},
	}
	for _, write := range []func(io.Writer, ...Spec) error{Archive, OCIArchive} {
		var one, two bytes.Buffer
		if err := errors.Join(write(&one, spec), write(&two, spec)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(one.Bytes(), two.Bytes()) {
			t.Error("two archives of one spec differ")
		}
	}
}

func TestTarMakesMissingParentsOnce(t *testing.T) {
	data, err := Tar(Layer{{Path: "/a/b/c"}, {Path: "a/b/d"}, {Path: "e", Dir: true}, {Path: "e/f"}, Whiteout("/a/x"), Opaque("/e")})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	r := tar.NewReader(bytes.NewReader(data))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
	}
	want := []string{"a/", "a/b/", "a/b/c", "a/b/d", "e/", "e/f", "a/.wh.x", "e/.wh..wh..opq"}
	if !slices.Equal(names, want) {
		t.Errorf("entries %q, want %q", names, want)
	}
}
