package provisiontest

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

const dirMode = fs.ModeDir | 0o755

type inode struct {
	mode     fs.FileMode // type and permissions
	uid, gid int
	content  string
	target   string
	stamp    int
}

func (n *inode) String() string {
	return fmt.Sprintf("%v %d:%d %q %s", n.mode, n.uid, n.gid, n.content, n.target)
}

func digestOf(content string) string { return digest.FromString(content).String() }

type files struct{ h *Host }

// get follows links in the directories of p, and, if last, p itself. Callers hold mu.
func (f files) get(p string, last bool) (string, *inode, error) {
	for range 40 {
		dir := path.Dir(p)
		if dir != "/" {
			real, n, err := f.get(dir, true)
			if err != nil {
				return "", nil, err
			}
			if !n.mode.IsDir() {
				return "", nil, fmt.Errorf("%s is not a directory: %w", real, errs.NotFound)
			}
			p = path.Join(real, path.Base(p))
		}
		n, ok := f.h.nodes[p]
		if !ok {
			return p, nil, fmt.Errorf("%s: %w", p, errs.NotFound)
		}
		if n.mode.Type() != fs.ModeSymlink || !last {
			return p, n, nil
		}
		if path.IsAbs(n.target) {
			p = path.Clean(n.target)
		} else {
			p = path.Join(path.Dir(p), n.target)
		}
	}
	return "", nil, fmt.Errorf("%s: too many links: %w", p, errs.Invalid)
}

func (f files) Stat(p string) (provision.FileInfo, error) {
	var info provision.FileInfo
	err := f.h.read(func() error {
		_, n, err := f.get(p, false)
		if err != nil {
			return err
		}
		info = provision.FileInfo{
			Type: n.mode.Type(), Mode: n.mode &^ fs.ModeType, UID: n.uid, GID: n.gid, Size: int64(len(n.content)),
			Target: n.target, Stamp: fmt.Sprint(n.stamp),
		}
		return nil
	})
	return info, err
}

func (f files) Open(p string) (io.ReadCloser, error) {
	var r io.ReadCloser
	err := f.h.read(func() error {
		_, n, err := f.get(p, true)
		if err == nil && n.mode.IsDir() {
			return fmt.Errorf("%s is not a regular file: %w", p, errs.State)
		}
		if err == nil {
			r = io.NopCloser(strings.NewReader(n.content))
		}
		return err
	})
	return r, err
}

func (f files) Digest(p string) (string, error) {
	var d string
	err := f.h.read(func() error {
		_, n, err := f.get(p, false)
		if err == nil {
			d = digestOf(n.content)
		}
		return err
	})
	return d, err
}

func (f files) ReadDir(p string) ([]string, error) {
	var list []string
	err := f.h.read(func() error {
		real, _, err := f.get(p, true)
		if err != nil {
			return err
		}
		list = f.children(real)
		return nil
	})
	return list, err
}

func (f files) children(dir string) []string {
	var list []string
	for other := range f.h.nodes {
		if other != dir && path.Dir(other) == dir {
			list = append(list, path.Base(other))
		}
	}
	slices.Sort(list)
	return list
}

func (f files) put(p string, n *inode) error {
	if _, dir, err := f.get(path.Dir(p), true); err != nil || !dir.mode.IsDir() {
		return fmt.Errorf("cannot write %s: its directory: %w", p, errs.NotFound)
	}
	real, old, _ := f.get(p, false)
	if old != nil && old.mode.IsDir() {
		return fmt.Errorf("%s is a directory: %w", p, errs.State)
	}
	f.h.stamp++
	n.stamp = f.h.stamp
	f.h.nodes[real] = n
	return nil
}

func (f files) Write(p string, r io.Reader, attr provision.Attr) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return f.h.change("write "+p, func() error {
		return f.put(p, &inode{mode: attr.Mode, uid: attr.UID, gid: attr.GID, content: string(data)})
	})
}

func (f files) Append(p string, data []byte, attr provision.Attr) error {
	return f.h.changeOrHalf("append "+p,
		func() error { return f.add(p, data, attr) },
		func() error { return f.add(p, data[:len(data)/2], attr) })
}

func (f files) add(p string, data []byte, attr provision.Attr) error {
	old := ""
	if _, n, err := f.get(p, true); err == nil {
		old = n.content
		attr = provision.Attr{Mode: n.mode, UID: n.uid, GID: n.gid}
	}
	return f.put(p, &inode{mode: attr.Mode, uid: attr.UID, gid: attr.GID, content: old + string(bytes.Clone(data))})
}

// Room is Host.Free.
func (f files) Room(string) int64 { return f.h.Free }

// Reserve creates an empty file: it takes no space.
func (f files) Reserve(p string, _ int64) error {
	return f.h.change("reserve "+p, func() error { return f.put(p, &inode{mode: 0o600}) })
}

func (f files) Mkdir(p string, attr provision.Attr) error {
	return f.h.change("mkdir "+p, func() error {
		delete(f.h.nodes, p+".left")
		if real, n, err := f.get(p, true); err == nil {
			if n.mode.IsDir() {
				return nil
			}
			return fmt.Errorf("%s is not a directory: %w", real, errs.State)
		}
		return f.put(p, &inode{mode: attr.Mode | fs.ModeDir, uid: attr.UID, gid: attr.GID})
	})
}

func (f files) Link(target, p string, attr provision.Attr) error {
	return f.h.change("link "+p, func() error {
		return f.put(p, &inode{mode: fs.ModeSymlink | 0o777, uid: attr.UID, gid: attr.GID, target: target})
	})
}

func (f files) SetAttr(p string, attr provision.Attr) error {
	return f.h.change("chmod "+p, func() error {
		_, n, err := f.get(p, false)
		if err != nil {
			return err
		}
		n.mode = n.mode.Type() | attr.Mode
		n.uid, n.gid = attr.UID, attr.GID
		return nil
	})
}

func (f files) Remove(p string) error {
	return f.h.change("remove "+p, func() error {
		real, _, err := f.get(p, false)
		if err != nil {
			return errs.IgnoreNotFound(err)
		}
		if children := f.children(real); len(children) > 0 {
			return fmt.Errorf("%s is not empty: %w", p, errs.State)
		}
		delete(f.h.nodes, real)
		return nil
	})
}

// Tidy removes PATH.left, which stands for what a killed write leaves: writes here are atomic. Mkdir removes it as well.
func (f files) Tidy(p string) error {
	return f.h.read(func() error { delete(f.h.nodes, p+".left"); return nil })
}

// RemoveAll removes a tree.
func (f files) RemoveAll(p string) error {
	return f.h.change("remove all "+p, func() error {
		real, _, err := f.get(p, false)
		if err != nil {
			return errs.IgnoreNotFound(err)
		}
		for other := range f.h.nodes {
			if other == real || strings.HasPrefix(other, real+"/") {
				delete(f.h.nodes, other)
			}
		}
		return nil
	})
}
