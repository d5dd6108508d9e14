package machine

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
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
	making  sync.Mutex // held while a directory is created, or a path tidied: they use the same temporary directory
}

func newFiles(root string, label func(string) error, digestFile string) *files {
	return &files{root: root, label: label, digests: digests{file: digestFile, known: map[string]content{}}}
}

// at returns a path that this process can open for p, until done is called. Links in its
// directories are resolved: below the root of another machine, and on this one by walk. p itself
// may be a link.
func (f *files) at(p string) (at string, done func(), err error) {
	done = func() {}
	if !path.IsAbs(p) {
		return "", done, fmt.Errorf("path %q is not absolute: %w", p, errs.Invalid)
	}
	if f.root == "/" {
		p = path.Clean(p)
		if p == "/" {
			return p, done, nil
		}
		dir, err := walk(path.Dir(p))
		if err != nil {
			return "", done, kind(err)
		}
		return filepath.Join(byFD(dir), path.Base(p)), func() { dir.Close() }, nil
	}
	dir, err := securejoin.SecureJoin(f.root, path.Dir(p))
	if err != nil {
		return "", done, fmt.Errorf("cannot resolve %s below %s: %w", p, f.root, err)
	}
	return filepath.Join(dir, path.Base(p)), done, nil
}

// kind gives an error of a missing file, or of a refused operation, its kind. at are the paths that
// the operation worked on, if err does not name them.
func kind(err error, at ...string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %w", errs.NotFound, err)
	case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EBUSY):
		return fmt.Errorf("%w: %w", errs.State, err)
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EROFS): // forbidden even for root
		return fmt.Errorf("%s: %w: %w", refused(err, at...), errs.State, err)
	}
	return err
}

// Stat does not follow the last link.
func (f *files) Stat(p string) (provision.FileInfo, error) {
	at, done, err := f.at(p)
	if err != nil {
		return provision.FileInfo{}, err
	}
	defer done()
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
	var at string
	if f.root != "/" {
		var err error
		if at, err = securejoin.SecureJoin(f.root, p); err != nil {
			return nil, err
		}
	} else {
		found, err := walk(path.Clean(p))
		if err != nil {
			return nil, kind(err)
		}
		defer found.Close()
		at = byFD(found)
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
	at, done, err := f.at(p)
	if err != nil {
		return nil, err
	}
	defer done()
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

// crioDropIns is the directory of which CRI-O reads every file, whatever its name.
const crioDropIns = "/etc/crio/crio.conf.d"

// temp is the temporary file of a Write of a path, which at opens. It is the same for each Write, so the next Write
// replaces what a killed one left. Programs that read a directory of configurations do not read it: its name has none of
// their extensions, and CRI-O's lie above their directory.
func temp(at, p string) string {
	dir := filepath.Dir(at)
	if path.Dir(path.Clean(p)) == crioDropIns {
		dir += "/.." // not joined: at leads over a descriptor
	}
	return dir + "/.berth-node." + path.Base(p) + ".tmp"
}

// earlierTemp is the temporary file that an earlier version had: its name is one of a configuration if that of p is.
func earlierTemp(at, p string) string { return filepath.Dir(at) + "/.berth-node." + path.Base(p) }

// Write writes beside the file, syncs, and renames.
func (f *files) Write(p string, r io.Reader, attr provision.Attr) (err error) {
	at, done, err := f.at(p)
	if err != nil {
		return err
	}
	defer done()
	if err := f.Tidy(p); err != nil {
		return fmt.Errorf("cannot write %s: %w", p, err)
	}
	file, err := os.OpenFile(temp(at, p), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
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
	if err := os.Rename(temp(at, p), at); err != nil {
		return err
	}
	return f.settle(at, p)
}

// settle labels a path and makes its name durable.
func (f *files) settle(at, p string) error {
	if f.label != nil {
		if err := f.label(p); err != nil {
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

// Tidy removes the temporary file of a path, or its temporary directory, in which no Mkdir works then.
func (f *files) Tidy(p string) error {
	f.making.Lock()
	defer f.making.Unlock()
	return f.tidy(p)
}

// tidy is Tidy for callers that hold making.
func (f *files) tidy(p string) error {
	at, done, err := f.at(p)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	defer done()
	for _, left := range []string{temp(at, p), earlierTemp(at, p)} {
		_, err := os.Lstat(left) // a read-only file system refuses even to remove nothing
		if err == nil {
			err = os.Remove(left)
		}
		if err := errs.IgnoreNotFound(kind(err)); err != nil {
			return err
		}
	}
	return nil
}

// Append writes at the end and syncs. It cuts off a record that it could not write whole.
func (f *files) Append(p string, data []byte, attr provision.Attr) error {
	at, done, err := f.at(p)
	if err != nil {
		return err
	}
	defer done()
	_, missing := os.Lstat(at)
	file, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, attr.Mode)
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

// Room is the space that the file system has for users other than root, too.
func (f *files) Room(dir string) int64 {
	at, done, err := f.at(dir)
	defer done()
	var disk unix.Statfs_t
	if err == nil {
		err = unix.Statfs(at, &disk)
	}
	if err != nil {
		return math.MaxInt64
	}
	return int64(disk.Bavail) * disk.Bsize
}

// Reserve allocates the space without writing it, if the file system can.
func (f *files) Reserve(p string, size int64) error {
	at, done, err := f.at(p)
	if err != nil {
		return err
	}
	defer done()
	file, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("cannot reserve room in %s: %w", path.Dir(p), kind(err))
	}
	defer file.Close()
	err = unix.Fallocate(int(file.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = io.CopyN(file, rand.Reader, size) // which no file system compresses
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot reserve %d MiB in %s: %w", size>>20, path.Dir(p), kind(err)), os.Remove(at))
	}
	return nil
}

// Mkdir makes a directory beside its path, with its mode and owner, and renames it: one that is there is complete.
func (f *files) Mkdir(p string, attr provision.Attr) error {
	at, done, err := f.at(p)
	if err != nil {
		return err
	}
	defer done()
	f.making.Lock()
	defer f.making.Unlock()
	if isDir(at) {
		return nil
	}
	if err := f.tidy(p); err != nil {
		return err
	}
	err = os.Mkdir(temp(at, p), 0o700)
	if err == nil {
		err = f.SetAttr(temp(p, p), attr)
	}
	if err == nil {
		err = os.Rename(temp(at, p), at)
	}
	if err != nil {
		tidied := f.tidy(p)
		if isDir(at) { // somebody else created it
			return tidied
		}
		return errors.Join(fmt.Errorf("cannot make directory %s: %w", p, kind(err)), tidied)
	}
	return f.settle(at, p)
}

func isDir(at string) bool {
	info, err := os.Stat(at)
	return err == nil && info.IsDir()
}

// Link makes the link beside the path and renames it.
func (f *files) Link(target, p string, attr provision.Attr) error {
	at, done, err := f.at(p)
	if err != nil {
		return err
	}
	defer done()
	if err := f.Tidy(p); err != nil {
		return err
	}
	err = os.Symlink(target, temp(at, p))
	if err == nil {
		err = os.Lchown(temp(at, p), attr.UID, attr.GID)
	}
	if err == nil {
		err = os.Rename(temp(at, p), at)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot make link %s: %w", p, kind(err)), f.Tidy(p))
	}
	return f.settle(at, p)
}

// SetAttr changes owner, then mode.
func (f *files) SetAttr(p string, attr provision.Attr) error {
	at, done, err := f.at(p)
	if err != nil {
		return err
	}
	defer done()
	file, err := open(unix.AT_FDCWD, at, 0) // which stays the same while names change
	if err != nil {
		return fmt.Errorf("cannot set the owner of %s: %w", p, kind(err))
	}
	defer file.Close()
	var st, dir unix.Stat_t
	if err := errors.Join(unix.Fstat(int(file.Fd()), &st), unix.Stat(filepath.Dir(at), &dir)); err != nil {
		return fmt.Errorf("cannot set the owner of %s: %w", p, kind(err, byFD(file)))
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink > 1 && dir.Uid != 0 && int(dir.Uid) != os.Geteuid() {
		return fmt.Errorf("%s has %d names, and its directory belongs to user %d, who may have given it another's file; root does not change it: %w",
			p, st.Nlink, dir.Uid, errs.State)
	}
	if err := unix.Fchownat(int(file.Fd()), "", attr.UID, attr.GID, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("cannot set the owner of %s: %w", p, kind(err, byFD(file)))
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil
	}
	if err := os.Chmod(byFD(file), attr.Mode); err != nil {
		return fmt.Errorf("cannot set the mode of %s: %w", p, kind(err))
	}
	return nil
}

// Remove removes one thing.
func (f *files) Remove(p string) error {
	at, done, err := f.at(p)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	defer done()
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
	at, done, err := f.at(p)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	defer done()
	if err := os.RemoveAll(at); err != nil {
		return fmt.Errorf("cannot remove %s: %w", p, kind(err))
	}
	return nil
}
