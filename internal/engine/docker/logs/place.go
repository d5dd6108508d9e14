package logs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// logMode lets the group read: collectors run in it.
const logMode = 0o640

// place is where a container's log is: a path below a directory that is the kubelet's. No
// symbolic link below that directory is followed, since a pod can have the directory as a
// volume. Calls may block for as long as the file system does.
type place struct{ root, path string }

// gone reports whether an error of a place means that the log, or a directory of its path,
// does not exist or cannot be a log.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, errs.Invalid)
}

// open opens the log file. When it is absent, open creates it; if create is false, open returns
// an error for which gone is true.
func (p place) open(create bool) (*logFile, error) {
	root, err := os.Open(p.root)
	if err != nil {
		return nil, p.explain(err)
	}
	defer root.Close()
	for {
		f, err := openPlain(root, p.path)
		if err == nil || !create || !errors.Is(err, os.ErrNotExist) {
			return f, err
		}
		if err := p.create(root); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, p.explain(errs.OfDisk(err))
		}
	}
}

func (p place) create(root *os.File) error {
	f, err := sysfile.OpenBeneath(root, p.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NONBLOCK|unix.O_NOCTTY, logMode)
	if err != nil {
		return err
	}
	defer f.Close()
	// The umask is the process's business, not the log's.
	if err := f.Chmod(logMode); err != nil {
		return fmt.Errorf("cannot make a log: %w", err)
	}
	return nil
}

// directory opens the directory of the log file.
func (p place) directory() (*os.File, error) {
	root, err := os.Open(p.root)
	if err != nil {
		return nil, p.explain(err)
	}
	defer root.Close()
	dir, err := sysfile.OpenBeneath(root, filepath.Dir(p.path), os.O_RDONLY|syscall.O_DIRECTORY, 0)
	return dir, p.explain(err)
}

// find opens the file with the given id under any name in the log file's directory. NotFound
// if it has none.
func (p place) find(id sysfile.FileID) (*logFile, error) {
	dir, err := p.directory()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	name, err := sysfile.FindFile(dir, id)
	if errors.Is(err, errs.NotFound) {
		// A rename at this moment can hide a name from a listing of the directory.
		name, err = sysfile.FindFile(dir, id)
	}
	if err != nil {
		return nil, err
	}
	f, err := openPlain(dir, name)
	if err != nil {
		return nil, p.explain(err)
	}
	if st, err := f.state(); err != nil || st.ID != id {
		f.Close()
		return nil, errors.Join(err, fmt.Errorf("log file %s was replaced: %w", name, errs.NotFound))
	}
	return f, nil
}

// rotated lists the files that a kubelet made of this log by renaming it, newest first. The
// second result is true when there are more, which are compressed.
func (p place) rotated() (files []*logFile, compressed bool, err error) {
	dir, err := p.directory()
	if err != nil {
		return nil, false, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, false, fmt.Errorf("cannot list %s: %w", dir.Name(), err)
	}
	stamped := regexp.MustCompile(`^\.[0-9]{8}-[0-9]{6}(\.gz)?$`)
	var plain []string
	for _, name := range names {
		suffix, ours := strings.CutPrefix(name, filepath.Base(p.path))
		match := stamped.FindStringSubmatch(suffix)
		switch {
		case !ours || match == nil:
		case match[1] != "":
			compressed = true
		default:
			plain = append(plain, name)
		}
	}
	slices.Sort(plain)
	for _, name := range slices.Backward(plain) {
		if f, err := openPlain(dir, name); err == nil {
			files = append(files, f)
		}
	}
	return files, compressed, nil
}

// removeLink removes a symbolic link to a json file of the engine's, which dockershim and
// cri-dockerd make in place of a log. It is false when there is none.
func (p place) removeLink() (bool, error) {
	dir, err := p.directory()
	if err != nil {
		return false, err
	}
	defer dir.Close()
	name := filepath.Base(p.path)
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), name, target)
	if err != nil || !strings.HasSuffix(string(target[:n]), "-json.log") {
		return false, nil //nolint:nilerr // what is no link stays
	}
	if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil {
		return false, fmt.Errorf("cannot remove the link at log %s: %w", filepath.Join(p.root, p.path), err)
	}
	return true, nil
}

// explain adds the missing directory to an error when the log's directory is missing. The
// caller has to make that directory.
func (p place) explain(err error) error {
	if err != nil && errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("log directory %s is missing: %w (%w)", filepath.Dir(filepath.Join(p.root, p.path)), err, errs.Unavailable)
	}
	return err
}

// logFile is a regular file, held by an O_PATH descriptor: nothing is open for writing
// between writes.
type logFile struct{ path *os.File }

// openPlain opens a regular file beneath dir. Any other file is Invalid: a FIFO or a device
// would block, or do worse.
func openPlain(dir *os.File, path string) (*logFile, error) {
	f, err := sysfile.OpenBeneath(dir, path, sysfile.OpenPath, 0)
	if err != nil {
		return nil, err
	}
	st, err := sysfile.StatFile(f)
	if err == nil && !st.Regular {
		err = fmt.Errorf("log file %s is not a regular file: %w", f.Name(), errs.Invalid)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &logFile{f}, nil
}

func (f *logFile) state() (sysfile.FileState, error) { return sysfile.StatFile(f.path) }

func (f *logFile) Close() { f.path.Close() }

// reopen opens the file for real.
func (f *logFile) reopen(flags int) (*os.File, error) {
	file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.path.Fd()), flags, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open log %s: %w", f.path.Name(), err)
	}
	return file, nil
}

// read calls scan with the file's content from offset to size.
func (f *logFile) read(offset, size int64, scan func(io.Reader)) error {
	file, err := f.reopen(os.O_RDONLY)
	if err != nil {
		return err
	}
	defer file.Close()
	failed := &errorReader{in: io.NewSectionReader(file, offset, size-offset)}
	scan(failed)
	if failed.err != nil {
		return fmt.Errorf("cannot read log %s: %w", f.path.Name(), failed.err)
	}
	return nil
}

// errorReader remembers the error of a reader.
type errorReader struct {
	in  io.Reader
	err error
}

func (r *errorReader) Read(p []byte) (int, error) {
	n, err := r.in.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// writeFunc writes p at an offset of a log, the whole of it or with an error.
type writeFunc func(f *logFile, p []byte, offset int64) error

func writeFile(f *logFile, p []byte, offset int64) error {
	file, err := f.reopen(os.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(p, offset)
	if bad := file.Close(); err == nil { // some file systems report only here
		err = bad
	}
	if err != nil {
		return fmt.Errorf("cannot write to log %s: %w", f.path.Name(), errs.OfDisk(err))
	}
	return nil
}

// cut makes the file end at size.
func (f *logFile) cut(size int64) error {
	file, err := f.reopen(os.O_WRONLY)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		return fmt.Errorf("cannot cut an unfinished line off log %s: %w", f.path.Name(), err)
	}
	return nil
}
