package child

import (
	"archive/tar"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

const (
	// maxName bounds a name and the target of a link, in bytes, as Linux bounds a path. maxParts bounds the parts of a name:
	// the kernel looks up each of them, for each of the directories above an entry.
	maxName, maxParts = 4096, 255
	// maxXattr is the most that the kernel takes.
	maxXattr = 64 << 10
	// maxID is the largest user or group. The next one means "unchanged" to the kernel, which takes 32 bits of a larger one.
	maxID = 1<<32 - 2
	// maxMajor and maxMinor are what the kernel takes of a device number. It drops other bits, so that more numbers than 0:0
	// are the device that deletes something.
	maxMajor, maxMinor = 1<<12 - 1, 1<<20 - 1
)

// refuse is the error of an entry. Names are part of it as far as they fit into an event of a pod.
func refuse(header *tar.Header, format string, args ...any) error {
	return fmt.Errorf("entry %.200q %s: %w", header.Name, fmt.Sprintf(format, args...), errs.Invalid)
}

// checkEntry refuses what no tool writes, and what the kernel would take for something else.
func checkEntry(header *tar.Header) error {
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse, tar.TypeDir, tar.TypeLink, tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
	default:
		return refuse(header, "has the type %q, want a file, a directory, a link, a device or a FIFO", header.Typeflag)
	}
	if longest := max(len(header.Name), len(header.Linkname)); longest > maxName {
		return refuse(header, "has a name, or the target of a link, that has %d bytes, at most %d are taken", longest, maxName)
	}
	if parts := strings.Count(filepath.Clean(header.Name), "/") + 1; parts > maxParts {
		return refuse(header, "has a name of %d parts, at most %d are taken", parts, maxParts)
	}
	// What leads up from the root would land inside of it; no tool makes such names
	// but one that means the host.
	for _, name := range []string{header.Name, hardlinkOf(header)} {
		if name = filepath.Clean(name); name == ".." || strings.HasPrefix(name, "../") {
			return refuse(header, "leads out of the image")
		}
	}
	if uid, gid := header.Uid, header.Gid; uid < 0 || gid < 0 || uid > maxID || gid > maxID {
		return refuse(header, "has the owner %d:%d, want numbers up to %d", uid, gid, maxID)
	}
	if header.Typeflag == tar.TypeChar || header.Typeflag == tar.TypeBlock {
		return checkDevice(header)
	}
	return checkXattrs(header)
}

func checkDevice(header *tar.Header) error {
	major, minor := header.Devmajor, header.Devminor
	if major < 0 || minor < 0 || major > maxMajor || minor > maxMinor {
		return refuse(header, "is device %d:%d, want numbers up to %d:%d", major, minor, maxMajor, maxMinor)
	}
	if header.Typeflag == tar.TypeChar && major == 0 && minor == 0 {
		return refuse(header, "is character device 0:0, which the overlay file system takes for a deletion")
	}
	return nil
}

func checkXattrs(header *tar.Header) error {
	for key, value := range header.PAXRecords {
		if name, ok := strings.CutPrefix(key, xattrPrefix); ok && allowedXattr(name) && len(value) > maxXattr {
			return refuse(header, "has the attribute %.200q of %d bytes, at most %d are taken", name, len(value), maxXattr)
		}
	}
	return nil
}
