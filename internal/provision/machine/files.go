package machine

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// files is a file system below a root directory.
type files struct {
	root    string
	label   func(path string) error // nil for none
	digests digests
}

func newFiles(root string, label func(string) error, digestFile string) *files {
	return &files{root: root, label: label, digests: digests{file: digestFile, known: map[string]content{}}}
}

// at returns where p lies for us. Links in its directories are resolved below the
// root; p itself may be one.
func (f *files) at(p string) (string, error) {
	if !path.IsAbs(p) {
		return "", fmt.Errorf("path %q is not absolute: %w", p, errs.Invalid)
	}
	if f.root == "/" {
		return path.Clean(p), nil
	}
	dir, err := securejoin.SecureJoin(f.root, path.Dir(p))
	if err != nil {
		return "", fmt.Errorf("cannot resolve %s below %s: %w", p, f.root, err)
	}
	return filepath.Join(dir, path.Base(p)), nil
}

// kind gives what is not there, and what has no room, their kinds.
func kind(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %w", errs.NotFound, err)
	case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w", errs.State, err)
	case errors.Is(err, syscall.EPERM): // what even root may not
		return fmt.Errorf("somebody made it immutable (lsattr shows it, chattr -i takes it back): %w: %w", errs.State, err)
	}
	return err
}

// Stat does not follow the last link.
func (f *files) Stat(p string) (provision.FileInfo, error) {
	at, err := f.at(p)
	if err != nil {
		return provision.FileInfo{}, err
	}
	info, err := os.Lstat(at)
	if err != nil {
		return provision.FileInfo{}, kind(err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return provision.FileInfo{}, fmt.Errorf("cannot stat %s: %w", p, errs.Unsupported)
	}
	got := provision.FileInfo{
		Type: info.Mode().Type(), Mode: info.Mode() &^ fs.ModeType, UID: int(st.Uid), GID: int(st.Gid), Size: info.Size(),
		Stamp: fmt.Sprintf("%d:%d:%d:%d.%d:%d.%d", st.Dev, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec),
	}
	if got.Type == fs.ModeSymlink {
		got.Target, err = os.Readlink(at)
	}
	return got, kind(err)
}

// Open follows links.
func (f *files) Open(p string) (io.ReadCloser, error) {
	at, err := f.at(p)
	if err == nil && f.root != "/" {
		at, err = securejoin.SecureJoin(f.root, p)
	}
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(at, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, kind(err)
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		file.Close()
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file: %w", p, errs.State))
	}
	return file, nil
}

// Digest reads the file once for as long as it does not change.
func (f *files) Digest(p string) (string, error) {
	info, err := f.Stat(p)
	if err != nil {
		return "", err
	}
	if known := f.digests.get(f, p, info); known != "" {
		return known, nil
	}
	sum, err := f.hash(p)
	if err != nil {
		return "", err
	}
	f.digests.put(p, sum, info)
	return sum, nil
}

// ReadDir lists names.
func (f *files) ReadDir(p string) ([]string, error) {
	at, err := f.at(p)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(at)
	if err != nil {
		return nil, kind(err)
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name()
	}
	slices.Sort(names)
	return names, nil
}

// temp is where a Write of a path goes first; the same for each, so that one which was
// killed leaves nothing that the next does not take.
func temp(at string) string {
	return filepath.Join(filepath.Dir(at), ".berth-node."+filepath.Base(at))
}

// Write writes beside the file, syncs, and renames.
func (f *files) Write(p string, r io.Reader, attr provision.Attr) (err error) {
	at, err := f.at(p)
	if err != nil {
		return err
	}
	if err := os.Remove(temp(at)); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("cannot write %s: %w", p, kind(err))
	}
	file, err := os.OpenFile(temp(at), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", p, kind(err))
	}
	defer func() {
		file.Close()
		if err != nil {
			err = errors.Join(fmt.Errorf("cannot write %s: %w", p, kind(err)), f.Tidy(p))
		}
	}()
	if _, err := io.Copy(file, r); err != nil {
		return err
	}
	if err := file.Chown(attr.UID, attr.GID); err != nil {
		return err
	}
	if err := file.Chmod(attr.Mode); err != nil { // after chown, which clears setuid
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if err := os.Rename(temp(at), at); err != nil {
		return err
	}
	return f.settle(at)
}

// settle labels a path and makes its name durable.
func (f *files) settle(at string) error {
	if f.label != nil {
		if err := f.label(at); err != nil {
			return err
		}
	}
	return syncDir(filepath.Dir(at))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Tidy removes the temporary file of a path.
func (f *files) Tidy(p string) error {
	at, err := f.at(p)
	if err != nil {
		return err
	}
	return errs.IgnoreNotFound(kind(os.Remove(temp(at))))
}

// Append writes at the end and syncs. What could not be written whole is cut off again.
func (f *files) Append(p string, data []byte, attr provision.Attr) error {
	at, err := f.at(p)
	if err != nil {
		return err
	}
	_, missing := os.Lstat(at)
	file, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_APPEND, attr.Mode)
	if err != nil {
		return fmt.Errorf("cannot append to %s: %w", p, kind(err))
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("cannot append to %s: %w", p, err)
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot append to %s: %w", p, kind(err)), file.Truncate(info.Size()))
	}
	if missing != nil {
		return syncDir(filepath.Dir(at))
	}
	return nil
}

// Reserve lets the file system take the room without writing it, where it can.
func (f *files) Reserve(p string, size int64) error {
	at, err := f.at(p)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("cannot reserve room in %s: %w", path.Dir(p), kind(err))
	}
	defer file.Close()
	err = unix.Fallocate(int(file.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = io.CopyN(file, rand.Reader, size) // which no file system packs
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot reserve %d MiB in %s: %w", size>>20, path.Dir(p), kind(err)), os.Remove(at))
	}
	return nil
}

// Mkdir makes a directory with its mode and owner at once.
func (f *files) Mkdir(p string, attr provision.Attr) error {
	at, err := f.at(p)
	if err != nil {
		return err
	}
	if isDir(at) {
		return nil
	}
	if err := os.Mkdir(at, 0o700); err != nil {
		if isDir(at) { // somebody was faster
			return nil
		}
		return fmt.Errorf("cannot make directory %s: %w", p, kind(err))
	}
	if err := f.SetAttr(p, attr); err != nil {
		return err
	}
	return f.settle(at)
}

func isDir(at string) bool {
	info, err := os.Stat(at)
	return err == nil && info.IsDir()
}

// Link makes the link beside the path and renames it.
func (f *files) Link(target, p string, attr provision.Attr) error {
	at, err := f.at(p)
	if err != nil {
		return err
	}
	if err := f.Tidy(p); err != nil {
		return err
	}
	err = os.Symlink(target, temp(at))
	if err == nil {
		err = os.Lchown(temp(at), attr.UID, attr.GID)
	}
	if err == nil {
		err = os.Rename(temp(at), at)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot make link %s: %w", p, kind(err)), f.Tidy(p))
	}
	return f.settle(at)
}

// SetAttr changes owner, then mode.
func (f *files) SetAttr(p string, attr provision.Attr) error {
	at, err := f.at(p)
	if err != nil {
		return err
	}
	if err := os.Lchown(at, attr.UID, attr.GID); err != nil {
		return fmt.Errorf("cannot set the owner of %s: %w", p, kind(err))
	}
	info, err := os.Lstat(at)
	if err == nil && info.Mode().Type() != fs.ModeSymlink {
		err = os.Chmod(at, attr.Mode)
	}
	if err != nil {
		return fmt.Errorf("cannot set the mode of %s: %w", p, kind(err))
	}
	return nil
}

// Remove removes one thing.
func (f *files) Remove(p string) error {
	at, err := f.at(p)
	if err != nil {
		return err
	}
	if err := f.Tidy(p); err != nil {
		return err
	}
	if err := os.Remove(at); err != nil {
		if errors.Is(kind(err), errs.NotFound) {
			return nil
		}
		return fmt.Errorf("cannot remove %s: %w", p, kind(err))
	}
	return syncDir(filepath.Dir(at))
}

// RemoveAll removes a tree.
func (f *files) RemoveAll(p string) error {
	at, err := f.at(p)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(at); err != nil {
		return fmt.Errorf("cannot remove %s: %w", p, kind(err))
	}
	return nil
}
