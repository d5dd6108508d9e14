package sysquota

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// Commands of quotactl_fd(2), and what they take; see linux/quota.h and linux/dqblk_xfs.h. Both file systems serve all of
// them.
const (
	getQuota = 0x800007 // Q_GETQUOTA
	setQuota = 0x800008 // Q_SETQUOTA
	getState = 0x5808   // Q_XGETQSTATV
	// ofProjects is PRJQUOTA.
	ofProjects = 2
	// blockLimits is QIF_BLIMITS: the limits of blocks are valid. inodeLimits is QIF_ILIMITS.
	blockLimits, inodeLimits = 1, 4
	// limitUnit is the unit of the limits of blocks, QIF_DQBLKSIZE.
	limitUnit = 1024

	// inodeBytes is how many bytes of a limit allow one file, and minInodes how many files each limit allows: ext4 makes an
	// inode for each 16 KiB of a disk.
	inodeBytes = 4096
	minInodes  = 4096

	stateVersion = 1    // FS_QSTATV_VERSION1
	counted      = 0x10 // FS_QUOTA_PDQ_ACCT
	enforced     = 0x20 // FS_QUOTA_PDQ_ENFD
)

// dqblk is struct if_dqblk.
type dqblk struct {
	hardBlocks, softBlocks, bytes, hardInodes, softInodes, inodes, blockTime, inodeTime uint64
	valid                                                                               uint32
}

// statv is struct fs_quota_statv.
type statv struct {
	version uint8
	_       uint8
	flags   uint16
	_       [156]byte
}

// Quota is what a project takes of its file system.
type Quota struct {
	// Bytes are those on disk, files included that have no name any more. Directories count, too.
	Bytes, Inodes int64
	// Limit is the most bytes that it may take, InodeLimit the most inodes, 0 for any number.
	Limit, InodeLimit int64
}

// Of returns the quota of a project on the file system of a directory: the zero Quota for a project that has neither files
// nor a limit.
func Of(dir string, id uint32) (Quota, error) {
	f, err := openDirectory(dir)
	if err != nil {
		return Quota{}, err
	}
	defer f.Close()
	var q dqblk
	err = quotactl(f, getQuota, id, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) { // of xfs; ext4 has zeros
		return Quota{}, nil
	}
	return Quota{Bytes: int64(q.bytes), Inodes: int64(q.inodes), Limit: int64(q.hardBlocks) * limitUnit, InodeLimit: int64(q.hardInodes)}, err
}

// SetLimit limits the bytes of a project, rounded up to 1 KiB, and its files, directories included: one for each 4 KiB, and
// at least 4096. Otherwise empty files, which take no bytes, could use up the inodes of the file system. 0 removes both limits.
// What goes beyond them fails with EDQUOT (ext4) or ENOSPC (xfs). On ext4 they do not hold for processes with
// CAP_SYS_RESOURCE, except for what they write to an overlay.
func SetLimit(dir string, id uint32, bytes int64) error {
	return SetLimitBeside(dir, id, Quota{}, bytes)
}

// SetLimitBeside is SetLimit for a project that may have so many bytes and files beside what is used.
func SetLimitBeside(dir string, id uint32, used Quota, bytes int64) error {
	f, err := openDirectory(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	q := limitsOf(used, bytes)
	return quotactl(f, setQuota, id, unsafe.Pointer(&q))
}

func limitsOf(used Quota, bytes int64) dqblk {
	q := dqblk{valid: blockLimits | inodeLimits}
	if bytes > 0 {
		q.hardBlocks = uint64(used.Bytes+bytes+limitUnit-1) / limitUnit
		q.hardInodes = uint64(used.Inodes + max(bytes/inodeBytes, minInodes))
	}
	return q
}

// CanCount returns nil if directories that are made in a directory can have projects whose files the kernel counts, and else
// an error of kind Unsupported with the reason.
func CanCount(dir string) error {
	_, err := stateOf(dir)
	return err
}

// CanLimit is CanCount, with limits that hold.
func CanLimit(dir string) error {
	flags, err := stateOf(dir)
	if err == nil && flags&enforced == 0 {
		err = fmt.Errorf("the file system of %s counts the files of projects, but does not limit them; mount it with the option prjquota: %w", dir, errs.Unsupported)
	}
	return err
}

func stateOf(dir string) (flags uint16, err error) {
	f, err := openDirectory(dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	s := statv{version: stateVersion}
	if err := quotactl(f, getState, 0, unsafe.Pointer(&s)); err != nil || s.flags&counted == 0 {
		return 0, fmt.Errorf("the file system of %s has no project quotas, which need ext4 or xfs mounted with the option prjquota, and Linux 5.14: %w", dir, errs.Unsupported)
	}
	project, err := projectOf(f)
	if err == nil && project.Inherited {
		err = fmt.Errorf("%s belongs to project %d with all that is made in it, so that files of other projects cannot be moved there: %w", dir, project.ID, errs.Unsupported)
	}
	return s.flags, err
}

// quotactl needs no device node, as it finds the file system by the directory.
func quotactl(dir *os.File, command, id uint32, data unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, dir.Fd(), uintptr(command<<8|ofProjects), uintptr(id), uintptr(data), 0, 0)
	if errno != 0 {
		return &os.PathError{Op: "quota of projects of", Path: dir.Name(), Err: errno}
	}
	return nil
}
