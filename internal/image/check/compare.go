package check

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// compareTrees compares the files of a layer with those that were unpacked now: names, types, modes,
// owners, devices, targets of links, content and extended attributes. It returns the first
// difference, "" for none. It opens only regular files and follows no link.
func compareTrees(ctx context.Context, have, want string) (problem string, err error) {
	c := &comparison{ctx: ctx, have: have, want: want}
	err = c.entry(".")
	return c.problem, err
}

type comparison struct {
	ctx        context.Context //nolint:containedctx // of one call
	have, want string
	problem    string
	buffers    [2][64 << 10]byte
}

func (c *comparison) differs(at, format string, args ...any) error {
	c.problem = fmt.Sprintf("%s: ", strings.TrimPrefix(at, "./")) + fmt.Sprintf(format, args...)
	return nil
}

// entry compares one entry, and what is below it.
func (c *comparison) entry(at string) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	have, want := filepath.Join(c.have, at), filepath.Join(c.want, at)
	var h, w unix.Stat_t
	if err := unix.Lstat(want, &w); err != nil {
		return &os.PathError{Op: "lstat", Path: want, Err: err}
	}
	if err := unix.Lstat(have, &h); err != nil {
		return c.differs(at, "%v", err)
	}
	switch {
	case h.Mode != w.Mode:
		return c.differs(at, "its mode is %o, want %o", h.Mode, w.Mode)
	case h.Uid != w.Uid || h.Gid != w.Gid:
		return c.differs(at, "its owner is %d:%d, want %d:%d", h.Uid, h.Gid, w.Uid, w.Gid)
	case h.Rdev != w.Rdev:
		return c.differs(at, "it is another device")
	}
	if err := c.attributes(at, have, want); err != nil || c.problem != "" {
		return err
	}
	switch w.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if h.Size != w.Size {
			return c.differs(at, "it has %d bytes, want %d", h.Size, w.Size)
		}
		return c.content(at, have, want)
	case unix.S_IFLNK:
		return c.link(at, have, want)
	case unix.S_IFDIR:
		return c.directory(at, have, want)
	}
	return nil
}

func (c *comparison) link(at, have, want string) error {
	w, err := os.Readlink(want)
	if err != nil {
		return err
	}
	if h, err := os.Readlink(have); err != nil || h != w {
		return c.differs(at, "its target is %q, want %q", h, w)
	}
	return nil
}

func (c *comparison) directory(at, have, want string) error {
	w, err := os.ReadDir(want)
	if err != nil {
		return err
	}
	h, err := os.ReadDir(have)
	if err != nil {
		return c.differs(at, "it cannot be read: %v", err)
	}
	expected := map[string]bool{}
	for _, entry := range w {
		expected[entry.Name()] = true
	}
	for _, entry := range h {
		if !expected[entry.Name()] {
			return c.differs(filepath.Join(at, entry.Name()), "it is not in the layer")
		}
	}
	for _, entry := range w {
		if err := c.entry(filepath.Join(at, entry.Name())); err != nil || c.problem != "" {
			return err
		}
	}
	return nil
}

func (c *comparison) content(at, have, want string) error {
	w, err := os.Open(want)
	if err != nil {
		return err
	}
	defer w.Close()
	h, err := os.OpenFile(have, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return c.differs(at, "it cannot be read: %v", err)
	}
	defer func() {
		_ = unix.Fadvise(int(h.Fd()), 0, 0, unix.FADV_DONTNEED)
		h.Close()
	}()
	for offset := int64(0); ; {
		n, err := io.ReadFull(w, c.buffers[0][:])
		if err != nil && n == 0 {
			if err == io.EOF {
				return nil
			}
			return err
		}
		m, err := io.ReadFull(h, c.buffers[1][:n])
		if m < n {
			return c.differs(at, "it cannot be read after %d bytes: %v", offset+int64(m), err)
		}
		if !bytes.Equal(c.buffers[0][:n], c.buffers[1][:n]) {
			if !slices.ContainsFunc(c.buffers[1][:n], func(b byte) bool { return b != 0 }) {
				return c.differs(at, "zeroes at byte %d, want content", offset)
			}
			return c.differs(at, "other content after byte %d", offset)
		}
		if err := c.ctx.Err(); err != nil {
			return err
		}
		offset += int64(n)
	}
}

// attributes compares the extended attributes. Overlay's own, such as those of opaque directories,
// are part of a layer.
func (c *comparison) attributes(at, have, want string) error {
	w, err := attributesOf(want)
	if err != nil {
		return err
	}
	h, err := attributesOf(have)
	if err != nil {
		return c.differs(at, "its attributes cannot be read: %v", err)
	}
	for name, value := range w {
		if got, ok := h[name]; !ok || got != value {
			return c.differs(at, "its attribute %s differs", name)
		}
	}
	for name := range h {
		if _, ok := w[name]; !ok {
			return c.differs(at, "it has the attribute %s", name)
		}
	}
	return nil
}

// attributesOf reads those that a layer gives a file. Others are of the host: labels of SELinux, and
// what overlay notes on a layer that is in use.
func attributesOf(path string) (map[string]string, error) {
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, list)
	if err == unix.ENOTSUP {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "listxattr", Path: path, Err: err}
	}
	found := map[string]string{}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		switch {
		case name == "", name == "security.selinux", name == "security.ima", name == "security.evm":
			continue
		case strings.HasPrefix(name, "trusted.overlay.") && name != "trusted.overlay.opaque":
			continue
		}
		m, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return nil, &os.PathError{Op: "getxattr " + name, Path: path, Err: err}
		}
		found[name] = string(value[:m])
	}
	return found, nil
}
