package assets

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/ulikunitz/xz"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// What an archive may hold, so that a small one does not fill the disk.
const (
	maxMembers = 100_000
	maxBytes   = 16 << 30
)

// entry is one thing in an archive: a regular file with its content, or a link.
type entry struct {
	path    string
	content io.Reader // nil for a link
	target  string    // of a link: a path in the archive
	exec    bool
	single  provision.Single
}

// index lists the members of an asset.
func index(ctx context.Context, ref provision.AssetRef, file io.Reader) ([]provision.Member, error) {
	var list []provision.Member
	links := map[string]string{}
	total := int64(0)
	err := walk(ctx, ref, file, func(e entry) error {
		if len(list)+len(links) >= maxMembers {
			return fmt.Errorf("it holds more than %d files: %w", maxMembers, errs.Exhausted)
		}
		if e.content == nil {
			links[e.path] = e.target
			return nil
		}
		digester := digest.SHA256.Digester()
		n, err := io.Copy(digester.Hash(), io.LimitReader(e.content, maxBytes-total+1))
		if total += n; total > maxBytes {
			return fmt.Errorf("it holds more than %d bytes: %w", int64(maxBytes), errs.Exhausted)
		}
		list = append(list, provision.Member{Path: e.path, Digest: digester.Digest().String(), Size: n, Exec: e.exec, Single: e.single})
		return err
	})
	if err != nil {
		return nil, err
	}
	return append(list, resolve(list, links)...), nil
}

// resolve turns links to members into members.
func resolve(list []provision.Member, links map[string]string) []provision.Member {
	byPath := map[string]provision.Member{}
	for _, m := range list {
		byPath[m.Path] = m
	}
	var found []provision.Member
	for _, name := range slices.Sorted(maps.Keys(links)) {
		at := name
		for range 10 {
			if links[at] == "" {
				break
			}
			at = links[at]
		}
		if m, ok := byPath[at]; ok {
			m.From, m.Path = at, name
			found = append(found, m)
		}
	}
	return found
}

// walk calls f with each entry of an asset.
func walk(ctx context.Context, ref provision.AssetRef, file io.Reader, f func(entry) error) error {
	next := func(e entry) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return f(e)
	}
	buffered := bufio.NewReaderSize(file, 1<<16)
	format := ref.Format
	if format == "" {
		var err error
		if format, err = sniff(buffered); err != nil {
			return err
		}
	}
	if format == "zip" {
		return walkZip(file, next)
	}
	plain, err := decompress(format, buffered)
	if err != nil {
		return fmt.Errorf("it is damaged: %w: %w", errs.Invalid, err)
	}
	defer plain.Close()
	content := bufio.NewReaderSize(plain, 1<<16)
	switch {
	case format == "raw":
		return next(entry{path: singleName(ref, provision.SingleRaw), content: content, exec: true, single: provision.SingleRaw})
	case ref.Format != "" || isTar(content):
		return walkTar(content, next)
	}
	// One compressed file, not an archive.
	return next(entry{path: singleName(ref, provision.SinglePacked), content: content, exec: true, single: provision.SinglePacked})
}

// singleName is the path of a file that is alone: its source's name without the suffix of the
// compression.
func singleName(ref provision.AssetRef, how provision.Single) string {
	name := path.Base(strings.TrimRight(ref.Sources[0], "/"))
	if how == provision.SinglePacked {
		name = strings.TrimSuffix(name, path.Ext(name))
	}
	return name
}

// sniff finds the format by the first bytes.
func sniff(r *bufio.Reader) (string, error) {
	head, err := r.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	for format, magic := range map[string]string{
		"tar.gz": "\x1f\x8b", "tar.xz": "\xfd7zXZ\x00", "tar.zst": "\x28\xb5\x2f\xfd", "zip": "PK\x03\x04",
	} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return format, nil
		}
	}
	if isTar(r) {
		return "tar", nil
	}
	return "raw", nil
}

func isTar(r *bufio.Reader) bool {
	head, _ := r.Peek(262) // a shorter file is not a tar
	return len(head) == 262 && string(head[257:262]) == "ustar"
}

func decompress(format string, r io.Reader) (io.ReadCloser, error) {
	switch format {
	case "tar", "raw":
		return io.NopCloser(r), nil
	case "tar.gz":
		return gzip.NewReader(r)
	case "tar.xz":
		x, err := xz.NewReader(r)
		return io.NopCloser(x), err
	case "tar.zst":
		z, err := zstd.NewReader(r)
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return nil, fmt.Errorf("format %q: %w", format, errs.Invalid)
}

// walkTar leaves out devices and the like.
func walkTar(r io.Reader, f func(entry) error) error {
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the archive is damaged: %w: %w", errs.Invalid, err)
		}
		e := entry{path: clean(h.Name), exec: h.Mode&0o111 != 0}
		switch h.Typeflag {
		case tar.TypeReg:
			e.content = archive
		case tar.TypeSymlink:
			e.target = clean(h.Linkname)
			if !path.IsAbs(h.Linkname) {
				e.target = clean(path.Join(path.Dir(e.path), h.Linkname))
			}
		case tar.TypeLink:
			e.target = clean(h.Linkname)
		default:
			continue
		}
		if err := f(e); err != nil {
			return err
		}
	}
}

// walkZip reads at any place, so it needs the file itself.
func walkZip(r io.Reader, f func(entry) error) error {
	file, ok := r.(*os.File)
	if !ok {
		return fmt.Errorf("a zip archive must be a file: %w", errs.Unsupported)
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	archive, err := zip.NewReader(file, info.Size())
	if err != nil {
		return fmt.Errorf("the archive is damaged: %w: %w", errs.Invalid, err)
	}
	for _, z := range archive.File {
		if !z.Mode().IsRegular() {
			continue
		}
		content, err := z.Open()
		if err != nil {
			return fmt.Errorf("the archive is damaged: %w: %w", errs.Invalid, err)
		}
		err = f(entry{path: clean(z.Name), content: content, exec: z.Mode()&0o111 != 0})
		content.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// clean is a member's path without a leading "/" or "..".
func clean(name string) string { return strings.TrimPrefix(path.Join("/", name), "/") }
