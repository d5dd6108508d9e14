package bill

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

const (
	// maxUnpacked bounds what one layer unpacks to, and maxFiles its entries.
	maxUnpacked = 64 << 30
	maxFiles    = 5_000_000
	// maxDatabase bounds one file of a package database, maxDatabases all of a layer.
	maxDatabase  = 32 << 20
	maxDatabases = 64 << 20
	// maxWindow bounds the memory of a zstd stream.
	maxWindow = 128 << 20

	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

const (
	dpkgStatus  = "var/lib/dpkg/status"
	dpkgStatusD = "var/lib/dpkg/status.d"
	apkDB       = "lib/apk/db/installed"
	apkUsrDB    = "usr/lib/apk/db/installed"
	osRelease   = "etc/os-release"
	usrRelease  = "usr/lib/os-release"
)

// wanted reports whether a file is read.
func wanted(name string) bool {
	switch name {
	case dpkgStatus, apkDB, apkUsrDB, osRelease, usrRelease:
		return true
	}
	return path.Dir(name) == dpkgStatusD && !strings.HasSuffix(name, ".md5sums")
}

// layer has what a layer changes of the files that are wanted.
type layer struct {
	files map[string][]byte
	// hidden are paths of lower layers that the layer removes, opaque directories whose content it replaces.
	hidden, opaque []string
}

// over applies a layer to the files of those below.
func (l *layer) over(files map[string][]byte) {
	for name := range files {
		for _, gone := range l.hidden {
			if name == gone || strings.HasPrefix(name, gone+"/") {
				delete(files, name)
			}
		}
		for _, dir := range l.opaque {
			if dir == "." || strings.HasPrefix(name, dir+"/") {
				delete(files, name)
			}
		}
	}
	for name, data := range l.files {
		files[name] = data
	}
}

// layer reads a layer, once for all images.
func (r *reader) layer(desc imagespec.Descriptor) (*layer, error) {
	if known := r.layers[desc.Digest]; known != nil {
		return known, nil
	}
	name, err := blobName(desc.Digest)
	if err != nil {
		return nil, err
	}
	blob, err := r.open(name)
	if err != nil {
		return nil, err
	}
	plain, err := decompress(blob)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	found, err := readLayer(plain)
	if err != nil {
		return nil, err
	}
	r.layers[desc.Digest] = found
	return found, nil
}

func decompress(from io.Reader) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(from, 256<<10)
	magic, err := buffered.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(buffered)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(buffered), nil
}

func readLayer(plain io.Reader) (*layer, error) {
	limited := &io.LimitedReader{R: plain, N: maxUnpacked}
	t := tar.NewReader(limited)
	l := &layer{files: map[string][]byte{}}
	var kept int64
	for n := 0; ; n++ {
		header, err := t.Next()
		if limited.N <= 0 || n > maxFiles {
			return nil, fmt.Errorf("it has more than %d bytes or %d files: %w", int64(maxUnpacked), maxFiles, errs.Invalid)
		}
		if errors.Is(err, io.EOF) {
			return l, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", err, errs.Invalid)
		}
		name := strings.TrimPrefix(path.Clean("/"+header.Name), "/")
		dir, base := path.Dir(name), path.Base(name)
		switch {
		case base == opaque:
			l.opaque = append(l.opaque, dir)
		case strings.HasPrefix(base, whiteout):
			if hidden := path.Join(dir, strings.TrimPrefix(base, whiteout)); leads(hidden) {
				l.hidden = append(l.hidden, hidden)
			}
		case !wanted(name):
		case header.Typeflag != tar.TypeReg:
			delete(l.files, name)
		default:
			if kept += header.Size; header.Size > maxDatabase || kept > maxDatabases {
				return nil, fmt.Errorf("%s has %d bytes, at most %d are read: %w", name, header.Size, maxDatabase, errs.Invalid)
			}
			data, err := io.ReadAll(t)
			if err != nil {
				return nil, fmt.Errorf("%s: %w: %w", name, err, errs.Invalid)
			}
			l.files[name] = data
		}
	}
}

// leads reports whether a wanted file may be at a path or below it. A layer may hide millions of others.
func leads(hidden string) bool {
	if wanted(hidden) {
		return true
	}
	for _, name := range []string{dpkgStatus, dpkgStatusD + "/x", apkDB, apkUsrDB, osRelease, usrRelease} {
		if strings.HasPrefix(name, hidden+"/") {
			return true
		}
	}
	return false
}
