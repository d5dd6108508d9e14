//go:build integration

package unpack

import (
	"archive/tar"
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// TestUsageIsThatOfTheFiles: what the helper has counted is what a walk counts. It does not count layers that remove something.
func TestUsageIsThatOfTheFiles(t *testing.T) {
	plain := []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "d", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "d", Mode: 0o700},
		{Typeflag: tar.TypeReg, Name: "d/empty"},
		{Typeflag: tar.TypeReg, Name: "implied/by/file", PAXRecords: map[string]string{"SCHILY.xattr.user.large": strings.Repeat("x", 2000)}},
		{Typeflag: tar.TypeLink, Name: "name", Linkname: "d/empty"},
		{Typeflag: tar.TypeSymlink, Name: "short", Linkname: "d"},
		{Typeflag: tar.TypeSymlink, Name: "long", Linkname: strings.Repeat("d/", 200)},
		{Typeflag: tar.TypeFifo, Name: "fifo"},
	}
	for i := range 300 { // the directory takes more than a block
		plain = append(plain, &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("d/%s-%d", strings.Repeat("f", 100), i)})
	}
	for name, c := range map[string]struct {
		headers []*tar.Header
		known   bool
	}{
		"plain":           {plain, true},
		"deletion":        {[]*tar.Header{{Typeflag: tar.TypeReg, Name: ".wh.gone"}}, false},
		"opaque":          {[]*tar.Header{{Typeflag: tar.TypeDir, Name: "d"}, {Typeflag: tar.TypeReg, Name: "d/.wh..wh..opq"}}, false},
		"replaced file":   {[]*tar.Header{{Typeflag: tar.TypeReg, Name: "f"}, {Typeflag: tar.TypeReg, Name: "f"}}, false},
		"replaced by dir": {[]*tar.Header{{Typeflag: tar.TypeReg, Name: "f"}, {Typeflag: tar.TypeDir, Name: "f"}}, false},
		"replaced dir":    {[]*tar.Header{{Typeflag: tar.TypeDir, Name: "f"}, {Typeflag: tar.TypeReg, Name: "f"}}, false},
		"nothing":         {nil, true},
	} {
		b := newBench(t)
		result, err := b.run(headers(t, c.headers...))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !c.known {
			if result.Usage != nil {
				t.Errorf("%s: the usage is %+v, want none", name, *result.Usage)
			}
			continue
		}
		b.wantUsage(name, result)
	}
	b := newBench(t)
	result, err := b.run(b.tar(imagetest.Layer{{Path: "file", Content: bytes.Repeat([]byte("content"), 10_000)}, {Path: "dir/other", Content: []byte("x")}}))
	if err != nil {
		t.Fatal(err)
	}
	b.wantUsage("content", result)
}

func (b *bench) wantUsage(name string, result Result) {
	b.t.Helper()
	want, err := sysfile.UsageOf(b.t.Context(), nil, b.path("upper"))
	if err != nil {
		b.t.Fatal(err)
	}
	if got := result.Usage; got == nil || got.Bytes != want.Bytes || got.Inodes != want.Inodes {
		b.t.Errorf("%s: the usage is %+v, want %+v", name, got, want)
	}
}
