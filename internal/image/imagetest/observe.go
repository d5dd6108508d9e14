package imagetest

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Observe describes each file below a directory, and the directory, by all that a process can see of it, one line each. Files with
// several names have the first of them in each.
func Observe(root string) ([]string, error) {
	var all []string
	first := map[[2]uint64]string{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		id := [2]uint64{st.Dev, st.Ino}
		if _, ok := first[id]; !ok {
			first[id] = name
		}
		size := st.Size
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			size, st.Nlink = 0, 0 // of the file system
		}
		content, err := contentOf(path, st.Mode)
		if err != nil {
			return err
		}
		attributes, err := attributesOf(path)
		all = append(all, fmt.Sprintf("%q mode %o owner %d:%d links %d device %x size %d time %d.%09d is %q content %q attributes %q",
			name, st.Mode, st.Uid, st.Gid, st.Nlink, st.Rdev, size, st.Mtim.Sec, st.Mtim.Nsec, first[id], content, attributes))
		return err
	})
	return all, err
}

func contentOf(path string, mode uint32) (string, error) {
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return os.Readlink(path)
	case unix.S_IFREG:
		file, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer file.Close()
		sum := sha256.New()
		_, err = io.Copy(sum, file)
		return fmt.Sprintf("%x", sum.Sum(nil)), err
	}
	return "", nil
}

func attributesOf(path string) ([]string, error) {
	list, value := make([]byte, 4096), make([]byte, 4096)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		return nil, &os.PathError{Op: "listxattr", Path: path, Err: err}
	}
	var all []string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return nil, &os.PathError{Op: "getxattr " + name, Path: path, Err: err}
		}
		all = append(all, name+"="+string(value[:n]))
	}
	slices.Sort(all)
	return all, nil
}

// Difference returns the first line in which two lists of Observe differ, "" for none.
func Difference(got, want []string) string {
	for i := range max(len(got), len(want)) {
		var a, b string
		if i < len(got) {
			a = got[i]
		}
		if i < len(want) {
			b = want[i]
		}
		if a != b {
			return fmt.Sprintf("line %d is\n%s\nwant\n%s", i, a, b)
		}
	}
	return ""
}
