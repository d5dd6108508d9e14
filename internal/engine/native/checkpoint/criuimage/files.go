package criuimage

import (
	"fmt"
	"path"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fown"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fs"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

const (
	filesName = "files.img"
	// maxDescriptor is the highest descriptor that a process may have open.
	maxDescriptor = 1 << 20
	// openFlags are the flags with which CRIU may open files: none of them makes or cuts a file.
	openFlags = unix.O_ACCMODE | unix.O_APPEND | unix.O_NONBLOCK | unix.O_DSYNC | unix.O_SYNC | unix.O_DIRECT | unix.O_LARGEFILE |
		largeFile | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NOATIME | unix.O_CLOEXEC | unix.O_PATH
	// largeFile is O_LARGEFILE as the kernel has it: package unix has 0 on machines of 64 bits.
	largeFile = 0x8000 | 0x20000
)

// file is one open file of the archive.
type file struct {
	kind fdinfo.FdTypes
	// pipe is the id of a pipe.
	pipe uint32
	// path of a regular file or a directory.
	path string
	// directory says what is at the path, and unreadable that the user of the request may enter a directory and not read it.
	directory, unreadable bool
}

// readFiles reads all open files, and writes them.
func (f *fitting) readFiles() error {
	in, err := f.open(filesName, "FILES")
	if err != nil {
		return err
	}
	w := newWritten("FILES")
	for in.more() {
		e := &fdinfo.FileEntry{}
		if err := in.next(e); err != nil {
			return err
		}
		kept, opened, err := f.fitFile(in.name, e)
		if err != nil {
			return err
		}
		if _, twice := f.files[e.GetId()]; twice || e.GetId() == 0 {
			return bad(in.name, "file %d is there twice", e.GetId())
		}
		f.files[e.GetId()] = opened
		if err := w.add(kept); err != nil {
			return err
		}
	}
	return save(f.at(filesName), w.data)
}

// fitFile refuses a file that the request does not give. What is left has the parts of its kind alone.
func (f *fitting) fitFile(name string, e *fdinfo.FileEntry) (kept *fdinfo.FileEntry, opened file, err error) {
	id := e.GetId()
	kept, opened = &fdinfo.FileEntry{Type: e.Type, Id: e.Id}, file{kind: e.GetType()}
	var owner *fown.FownEntry
	var flags, own uint32
	switch e.GetType() {
	case fdinfo.FdTypes_REG:
		kept.Reg, owner, flags, own = e.GetReg(), e.GetReg().GetFown(), e.GetReg().GetFlags(), e.GetReg().GetId()
		if err = f.fitRegular(name, kept.Reg, &opened); err != nil {
			return nil, opened, err
		}
	case fdinfo.FdTypes_PIPE:
		kept.Pipe, owner, flags, own = e.GetPipe(), e.GetPipe().GetFown(), e.GetPipe().GetFlags(), e.GetPipe().GetId()
		opened.pipe = kept.Pipe.GetPipeId()
		f.pipes[opened.pipe] = true
	case fdinfo.FdTypes_EVENTFD:
		kept.Efd, owner, flags, own = e.GetEfd(), e.GetEfd().GetFown(), e.GetEfd().GetFlags(), e.GetEfd().GetId()
	case fdinfo.FdTypes_EVENTPOLL:
		kept.Epfd, owner, flags, own = e.GetEpfd(), e.GetEpfd().GetFown(), e.GetEpfd().GetFlags(), e.GetEpfd().GetId()
	case fdinfo.FdTypes_SIGNALFD:
		kept.Sgfd, owner, flags, own = e.GetSgfd(), e.GetSgfd().GetFown(), e.GetSgfd().GetFlags(), e.GetSgfd().GetId()
	case fdinfo.FdTypes_TIMERFD:
		kept.Tfd, owner, flags, own = e.GetTfd(), e.GetTfd().GetFown(), e.GetTfd().GetFlags(), e.GetTfd().GetId()
		if c := kept.Tfd.GetClockid(); c != unix.CLOCK_REALTIME && c != unix.CLOCK_MONOTONIC && c != unix.CLOCK_BOOTTIME {
			return nil, opened, unsupported(name, "file %d: a timer of clock %d", id, c)
		}
	default:
		return nil, opened, unsupported(name, "file %d is of the kind %v, which is not restored", id, e.GetType())
	}
	switch {
	case owner == nil || own != id:
		return nil, opened, bad(name, "file %d is not of the kind %v, or has another number", id, e.GetType())
	case owner.GetPid() != 0 || owner.GetSignum() != 0:
		return nil, opened, unsupported(name, "file %d sends signals to process %d", id, owner.GetPid())
	case flags&^openFlags != 0:
		return nil, opened, bad(name, "file %d is open with the flags %#x", id, flags)
	}
	return kept, opened, nil
}

// fitRegular checks a file with a path. It is in the root filesystem, or is a device that each container has.
func (f *fitting) fitRegular(name string, e *regfile.RegFileEntry, opened *file) error {
	at := e.GetName()
	opened.path = at
	if !path.IsAbs(at) || path.Clean(at) != at || len(at) >= unix.PathMax || strings.ContainsRune(at, 0) {
		return bad(name, "file %d has the path %.200q", e.GetId(), at)
	}
	m, number, archived := f.mountOf(at)
	if e.MntId == nil || uint32(e.GetMntId()) != archived { //nolint:gosec // compared only
		return bad(name, "file %s is not on the mount that its path is on", at)
	}
	e.MntId = proto.Int32(int32(number)) //nolint:gosec // short
	if e.GetExt() || len(e.GetBuildId()) > 1024 {
		return unsupported(name, "file %s is outside of the archive", at)
	}
	if m.At != "/" {
		if isDevice(at) || at == "/dev" {
			opened.directory = at == "/dev"
			return nil
		}
		return unsupported(name, "file %s is on the mount %s: only files of the root filesystem are restored, and %s",
			at, m.At, strings.Join(devices(), ", "))
	}
	directory, readable, err := f.checkAccess(at, e.GetFlags())
	if err != nil {
		return bad(name, "file %s: %v", at, err)
	}
	opened.directory, opened.unreadable = directory, directory && !readable && e.GetFlags()&unix.O_PATH == 0
	return nil
}

// devices are those that each container has.
func devices() []string {
	return []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}
}

func isDevice(at string) bool {
	for _, d := range devices() {
		if at == d {
			return true
		}
	}
	return false
}

// fitFS checks the directories of a process.
func (f *fitting) fitFS(pid uint32) error {
	name := fmt.Sprintf("fs-%d.img", pid)
	in, err := f.open(name, "FS")
	if err != nil {
		return err
	}
	e := &fs.FsEntry{}
	if err := in.next(e); err != nil {
		return err
	}
	if root := f.files[e.GetRootId()]; root.kind != fdinfo.FdTypes_REG || root.path != "/" {
		return unsupported(in.name, "the root directory of process %d is not that of the container", pid)
	}
	if cwd := f.files[e.GetCwdId()]; cwd.kind != fdinfo.FdTypes_REG || !cwd.directory {
		return bad(in.name, "the working directory of process %d is not a directory", pid)
	}
	return saveOne(f.at("%s", name), "FS", e)
}

// fitDescriptors checks the table of descriptors of a process. Several processes may share one.
func (f *fitting) fitDescriptors(pid uint32) error {
	id := f.ids[pid].GetFilesId()
	if f.fdinfos[id] {
		return nil
	}
	f.fdinfos[id] = true
	name := fmt.Sprintf("fdinfo-%d.img", id)
	in, err := f.open(name, "FDINFO")
	if err != nil {
		return err
	}
	w, taken := newWritten("FDINFO"), map[uint32]bool{}
	for in.more() {
		e := &fdinfo.FdinfoEntry{}
		if err := in.next(e); err != nil {
			return err
		}
		opened, there := f.files[e.GetId()]
		if !there || opened.kind != e.GetType() || e.GetFd() > maxDescriptor || taken[e.GetFd()] || e.GetFlags()&^unix.FD_CLOEXEC != 0 {
			return bad(in.name, "descriptor %d is of file %d, which is not in %s, or is there twice", e.GetFd(), e.GetId(), filesName)
		}
		if opened.unreadable {
			return bad(in.name, "descriptor %d is of directory %s: %v", e.GetFd(), opened.path, errNotTheirs)
		}
		taken[e.GetFd()] = true
		e.XattrSecuritySelinux = nil
		if pid == f.tree[0].GetPid() && int(e.GetFd()) < len(f.stdio) {
			f.stdio[e.GetFd()] = nameOfStream(opened)
		}
		if err := w.add(e); err != nil {
			return err
		}
	}
	return save(f.at("%s", name), w.data)
}

// nameOfStream is how runc names what a descriptor is: it connects pipes with those of the new container.
func nameOfStream(opened file) string {
	if opened.kind == fdinfo.FdTypes_PIPE {
		return fmt.Sprintf("pipe:[%d]", opened.pipe)
	}
	return opened.path
}
