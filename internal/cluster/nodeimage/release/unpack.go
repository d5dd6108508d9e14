package release

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// unpack extracts programs from an archive, from any directory in it.
func unpack(ctx context.Context, place, file, dir string, names []string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", place, err)
	}
	defer f.Close()
	buffered := bufio.NewReaderSize(f, 1<<20)
	var from io.Reader = buffered
	if begin, _ := buffered.Peek(2); bytes.Equal(begin, []byte{0x1f, 0x8b}) {
		if from, err = gzip.NewReader(buffered); err != nil {
			return fmt.Errorf("%s is not an archive: %w: %w", place, errs.Invalid, err)
		}
	}
	missing := slices.Clone(names)
	archive := tar.NewReader(from)
	for len(missing) > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%s has no %s: %w", place, strings.Join(missing, ", "), errs.NotFound)
		}
		if err != nil {
			return fmt.Errorf("%s is not an archive: %w: %w", place, errs.Invalid, err)
		}
		i := slices.Index(missing, path.Base(header.Name))
		if i < 0 || header.Typeflag != tar.TypeReg {
			continue
		}
		if err := write(archive, path.Join(dir, missing[i])); err != nil {
			return fmt.Errorf("cannot take %s out of %s: %w", missing[i], place, err)
		}
		missing = slices.Delete(missing, i, i+1)
	}
	return nil
}

// single copies a program.
func single(file, to string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return write(f, to)
}

func write(from io.Reader, to string) (err error) {
	// The old file may be a link.
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, io.LimitReader(from, most))
	return err
}
