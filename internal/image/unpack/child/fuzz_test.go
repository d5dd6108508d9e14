package child

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/sys/sysfile"
)

// FuzzLayer: for any layer, the digest is that of the bytes read. No entry is accepted that leads
// out of the image, imitates a whiteout, or sets an attribute of the host.
func FuzzLayer(f *testing.F) {
	plain := seedLayer(f)
	var zipped bytes.Buffer
	gz := gzip.NewWriter(&zipped)
	if _, err := gz.Write(plain); err != nil {
		f.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		f.Fatal(err)
	}
	z, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain, false)
	f.Add(zipped.Bytes(), true)
	f.Add(z.EncodeAll(plain, []byte("\x50\x2a\x4d\x18\x01\x00\x00\x00x")), false)
	f.Add([]byte{0x1f, 0x8b}, false)
	f.Fuzz(func(t *testing.T, data []byte, alone bool) {
		const most = 1 << 24 // how much time a bomb may take
		if plain, err := decompress(bytes.NewReader(data)); err == nil {
			n, _ := io.Copy(io.Discard, io.LimitReader(plain, most))
			if plain.Close(); n == most {
				return
			}
		}
		s, err := newStream(bytes.NewReader(data))
		if err != nil {
			return
		}
		defer s.Close()
		var seen bytes.Buffer
		judgeEntries(t, tar.NewReader(io.TeeReader(s, &seen)), alone)
		rest := digest.Canonical.Digester()
		rest.Hash().Write(seen.Bytes())
		if _, err := io.Copy(rest.Hash(), s); err != nil {
			return // a truncated layer is refused
		}
		if whole, err := s.Digest(); err != nil || whole != rest.Digest().String() {
			t.Errorf("the digest is %s, %v; what was read has %s", whole, err, rest.Digest())
		}
	})
}

// judgeEntries reads entries until one is refused.
func judgeEntries(t *testing.T, entries *tar.Reader, alone bool) {
	t.Helper()
	const room = 1 << 20
	l := &layer{upper: "/upper", maxBytes: room, progress: &progress{}, alone: alone, dirs: map[string]bool{"/": true}}
	for {
		header, err := entries.Next()
		if err != nil {
			return
		}
		taken, err := l.accept(header)
		if err != nil || !taken {
			return
		}
		for _, name := range []string{header.Name, hardlinkOf(header)} {
			if name = filepath.Clean(name); name == ".." || strings.HasPrefix(name, "../") {
				t.Errorf("entry %+v leads out", header)
			}
		}
		if header.Typeflag == tar.TypeChar && header.Devmajor|header.Devminor == 0 {
			t.Errorf("entry %+v is a deletion in disguise", header)
		}
		for key := range header.PAXRecords {
			if name, ok := strings.CutPrefix(key, xattrPrefix); ok && !allowedXattr(name) {
				t.Errorf("entry %q sets %q", header.Name, name)
			}
		}
		if l.size < 0 || l.size > room {
			t.Errorf("%d bytes have passed", l.size)
		}
	}
}

// seedLayer has an entry of each kind.
func seedLayer(f *testing.F) []byte {
	f.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, header := range []tar.Header{
		{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o4755, PAXRecords: map[string]string{
			xattrPrefix + "security.capability": "x", xattrPrefix + "trusted.overlay.opaque": "y", xattrPrefix + "user.a": "z",
		}},
		{Name: "d/.wh.g", Typeflag: tar.TypeReg},
		{Name: "d/" + sysfile.OpaqueName, Typeflag: tar.TypeReg},
		{Name: "d/l", Typeflag: tar.TypeLink, Linkname: "d/f"},
		{Name: "d/s", Typeflag: tar.TypeSymlink, Linkname: "../../x"},
		{Name: "d/c", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
		{Name: "../x", Typeflag: tar.TypeFifo},
	} {
		if err := w.WriteHeader(&header); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	return buf.Bytes()
}
