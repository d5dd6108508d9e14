//go:build integration

package unpack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest/hostileimage"
)

// sizesOfLayers are layers of few bytes that want much memory, disk or time.
func sizesOfLayers() []hostileLayer {
	const sparse = "GNU.sparse.major=1"
	sparseOf := func(size string) func(*testing.T, string) []byte {
		body := make([]byte, 512)
		copy(body, "0\n")
		return entries(hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, PAX: []string{sparse, "GNU.sparse.minor=0", "GNU.sparse.name=holes", "GNU.sparse.realsize=" + size}, Body: body})
	}
	layerOf := func(mib int64) func(*Job) { return func(job *Job) { job.MaxLayer = mib << 20 } }
	return append([]hostileLayer{
		{name: "a size of 8 EiB", lesson: lies, refused: `entry "x" claims 9223372036854775807 bytes`, layer: entries(hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, Size: 1<<63 - 1})},
		{name: "a sparse file of 8 EiB", lesson: bombs, refused: `entry "holes" claims 9223372036854775807 bytes`, layer: sparseOf("9223372036854775807")},
		{name: "a sparse file that is larger than the disk", lesson: bombs, kind: errs.Exhausted, refused: `entry "holes" needs more than the 1073741824 bytes`, layer: sparseOf("2147483648")},
		{name: "a sparse file that is larger than a layer may be", lesson: bombs, refused: `entry "holes" needs more than the 67108864 bytes that a layer may have`, layer: sparseOf("536870912"), job: layerOf(64)},
		{name: "a sparse map of 1 GiB", lesson: "Go CVE-2025-58183", refused: `after entry "a"`, memory: 128, layer: func(t *testing.T, _ string) []byte {
			tail := new(hostileimage.RawTar).Add(hostileimage.RawEntry{Name: "a", Type: tar.TypeReg}, hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, Size: 1 << 30, PAX: []string{sparse, "GNU.sparse.minor=0", "GNU.sparse.name=holes", "GNU.sparse.realsize=1"}}).Bytes()
			return squeezed(t, io.MultiReader(bytes.NewReader(tail), strings.NewReader("100000000\n"), &repeated{text: []byte("1\n"), left: 64 << 20}))
		}},
		{name: "a PAX header of 1 GiB", lesson: bombs, refused: `after entry "a"`, memory: 128, layer: func(t *testing.T, _ string) []byte {
			return squeezed(t, io.MultiReader(bytes.NewReader(new(hostileimage.RawTar).Add(hostileimage.RawEntry{Name: "a", Type: tar.TypeReg}, hostileimage.RawEntry{Name: "x", Type: tar.TypeXHeader, Size: 1 << 30}).Bytes()), io.LimitReader(zeros{}, 64<<20)))
		}},
		{name: "a long name of 1 GiB", lesson: bombs, refused: `after entry "a"`, memory: 128, layer: func(t *testing.T, _ string) []byte {
			return squeezed(t, io.MultiReader(bytes.NewReader(new(hostileimage.RawTar).Add(hostileimage.RawEntry{Name: "a", Type: tar.TypeReg}, hostileimage.RawEntry{Name: "x", Type: tar.TypeGNULongName, GNU: true, Size: 1 << 30}).Bytes()), &repeated{text: []byte("n"), left: 64 << 20}))
		}},
		{name: "a file that is larger than a layer may be", lesson: bombs, refused: `entry "x" needs more than the 67108864 bytes that a layer may have`, job: layerOf(64), layer: func(t *testing.T, _ string) []byte {
			return squeezed(t, io.MultiReader(bytes.NewReader(new(hostileimage.RawTar).Add(hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, Size: 80 << 20}).Bytes()), io.LimitReader(zeros{}, 80<<20)))
		}},
		{name: "256 MiB of zeros after the end", lesson: bombs, refused: "follow the end of the layer's archive", memory: 128, layer: func(t *testing.T, _ string) []byte {
			return squeezed(t, io.MultiReader(bytes.NewReader(new(hostileimage.RawTar).Add(entry("a")).End()), io.LimitReader(zeros{}, 256<<20)))
		}},
		{name: "gzip in gzip", lesson: bombs, refused: "before its first entry", memory: 128, layer: func(t *testing.T, _ string) []byte { return gzipped(t, gzipped(t, make([]byte, 32<<20))) }},
		{name: "zstd in gzip", lesson: bombs, refused: "before its first entry", memory: 128, layer: func(t *testing.T, _ string) []byte {
			return gzipped(t, squeezed(t, io.LimitReader(zeros{}, 32<<20)))
		}},
		{name: "a zstd window of 2 GiB", lesson: bombs, refused: "window", layer: func(*testing.T, string) []byte { return window(31) }},
		{name: "a zstd window of 128 MiB", lesson: bombs, inside: "what zstd itself makes is taken", memory: 400, disk: 32, long: true, layer: func(t *testing.T, _ string) []byte {
			archive := new(hostileimage.RawTar)
			for range 20 { // more than two windows, which the decoder keeps
				archive.Add(hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, Body: make([]byte, 16<<20)})
			}
			return squeezed(t, bytes.NewReader(archive.End()), zstd.WithWindowSize(128<<20))
		}},
		{name: "100,000 empty parts of gzip", lesson: bombs, inside: "the layer is empty", memory: 128, layer: func(t *testing.T, _ string) []byte {
			return bytes.Repeat(gzipped(t, nil), 100_000)
		}},
		{name: "100,000 frames of zstd to skip", lesson: bombs, inside: "the layer is empty", memory: 128, layer: func(*testing.T, string) []byte {
			return bytes.Repeat([]byte("\x50\x2a\x4d\x18\x00\x00\x00\x00"), 100_000)
		}},
	}, manyEntries()...)
}

// manyEntries are layers whose bytes are many entries.
func manyEntries() []hostileLayer {
	many := func(n int, one func(i int) hostileimage.RawEntry) func(t *testing.T, _ string) []byte {
		return func(t *testing.T, _ string) []byte {
			var out bytes.Buffer
			z, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.SpeedFastest))
			if err != nil {
				t.Fatal(err)
			}
			block := new(hostileimage.RawTar)
			for i := range n {
				if block.Add(one(i)); block.Len() > 1<<20 || i == n-1 {
					if _, err := z.Write(block.Bytes()); err != nil {
						t.Fatal(err)
					}
					block.Reset()
				}
			}
			if _, err := z.Write(make([]byte, 1024)); err != nil {
				t.Fatal(err)
			}
			if err := z.Close(); err != nil {
				t.Fatal(err)
			}
			return out.Bytes()
		}
	}
	small := func(i int) hostileimage.RawEntry {
		return hostileimage.RawEntry{Name: fmt.Sprintf("%d/%d", i/1000, i), Type: tar.TypeReg, Mode: 0o644}
	}
	opaque := func(i int) hostileimage.RawEntry {
		return hostileimage.RawEntry{Name: fmt.Sprintf("%d/.wh..wh..opq", i), Type: tar.TypeReg}
	}
	deep := strings.Repeat("d/", 250)
	return []hostileLayer{
		{name: "2,000 empty files", inside: "all of them", layer: many(2000, small)},
		{name: "a million empty files", lesson: bombs, inside: "all of them", memory: 520, disk: 256, long: true, layer: many(1_000_000, small)},
		{name: "4,194,305 entries", lesson: bombs, refused: "is one too many: a layer has at most 4194304", memory: 256, long: true, layer: many(4<<20+1, func(int) hostileimage.RawEntry { return hostileimage.RawEntry{Name: ".", Type: tar.TypeDir} })},
		{name: "65,537 opaque directories", refused: "more than 65536 opaque directories", memory: 520, disk: 512, long: true, layer: many(1<<16+1, opaque)},
		{name: "a name of 1,900 parts", lesson: slow, refused: "has a name of 1901 parts, at most 255", layer: entries(hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, LongName: strings.Repeat("d/", 1900) + "x"})},
		{name: "names of 250 parts", lesson: slow, inside: "all of them", layer: many(3, func(i int) hostileimage.RawEntry {
			return hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, Mode: 0o644, LongName: deep + fmt.Sprint(i)}
		})},
		{name: "names through 200 links of 250 parts", lesson: slow, refused: "of processor time", memory: 128, long: true, layer: many(100_000, func(i int) hostileimage.RawEntry {
			switch {
			case i == 0:
				return hostileimage.RawEntry{Name: "x", Type: tar.TypeDir, Mode: 0o755, LongName: deep}
			case i <= 200:
				return hostileimage.RawEntry{Name: fmt.Sprint("l", i-1), Type: tar.TypeSymlink, PAX: []string{"linkpath=" + deep + strings.Repeat("../", 250) + fmt.Sprint("l", i)}}
			case i == 201:
				return hostileimage.RawEntry{Name: "l200", Type: tar.TypeDir, Mode: 0o755}
			}
			return hostileimage.RawEntry{Name: fmt.Sprint("l0/", i), Type: tar.TypeReg, Mode: 0o644}
		})},
	}
}

// repeated is a text again and again.
type repeated struct {
	text []byte
	left int
}

func (r *repeated) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, io.EOF
	}
	n := 0
	for n+len(r.text) <= len(p) && n < r.left {
		n += copy(p[n:], r.text)
	}
	r.left -= n
	return n, nil
}

// squeezed is a zstd stream.
func squeezed(t *testing.T, plain io.Reader, opts ...zstd.EOption) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out, append(opts, zstd.WithEncoderLevel(zstd.SpeedFastest))...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(z, plain); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipped(t *testing.T, plain []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// window is a zstd frame that needs 2^log bytes of memory, with a block of 512 zeros.
func window(log byte) []byte {
	return []byte{0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3, 0x03, 0x10, 0x00, 0x00}
}
