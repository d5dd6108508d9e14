package imagetest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Node is what a process can see of a file, by the field. "links" are all names of the inode, if it has several.
type Node map[string]string

// NodeFields are the fields of a Node, of which a file has those of its type.
func NodeFields() []string {
	return []string{"mode", "owner", "mtime", "size", "content", "target", "device", "xattrs", "links"}
}

// Observe returns the nodes of a tree by their names, "." for the root.
func Observe(root string) (map[string]Node, error) {
	tree, inodes := map[string]Node{}, map[[2]uint64][]string{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &os.PathError{Op: "stat", Path: path, Err: err}
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			inode := [2]uint64{st.Dev, st.Ino} //nolint:unconvert // 32 bits on some architectures
			inodes[inode] = append(inodes[inode], name)
		}
		tree[name], err = nodeOf(path, &st)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, names := range inodes {
		if len(names) > 1 {
			for _, name := range names {
				tree[name]["links"] = fmt.Sprintf("%q", names)
			}
		}
	}
	return tree, nil
}

func nodeOf(path string, st *unix.Stat_t) (Node, error) {
	n := Node{
		"mode":  fmt.Sprintf("%o", st.Mode),
		"owner": fmt.Sprintf("%d:%d", st.Uid, st.Gid),
		"mtime": time.Unix(st.Mtim.Sec, st.Mtim.Nsec).UTC().Format("2006-01-02T15:04:05.999999999"),
	}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n["size"] = fmt.Sprint(st.Size)
		n["content"], err = digestOf(path)
	case unix.S_IFLNK:
		n["target"], err = os.Readlink(path)
	case unix.S_IFCHR, unix.S_IFBLK:
		n["device"] = fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	if err != nil {
		return nil, err
	}
	n["xattrs"], err = xattrsOf(path)
	return n, err
}

func digestOf(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	return fmt.Sprintf("%x", hash.Sum(nil)), err
}

func xattrsOf(path string) (string, error) {
	list, value := make([]byte, 64<<10), make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		return "", &os.PathError{Op: "listxattr", Path: path, Err: err}
	}
	var all []string
	for name := range bytes.SplitSeq(list[:n], []byte{0}) {
		if len(name) == 0 {
			continue
		}
		n, err := unix.Lgetxattr(path, string(name), value)
		if err != nil {
			return "", &os.PathError{Op: "getxattr " + string(name), Path: path, Err: err}
		}
		all = append(all, fmt.Sprintf("%s=%q", name, value[:n]))
	}
	slices.Sort(all)
	return strings.Join(all, " "), nil
}

// Difference returns the first name in which two trees differ, with its nodes, "" for none.
func Difference(got, want map[string]Node) string {
	all := maps.Clone(got)
	maps.Copy(all, want)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !maps.Equal(got[name], want[name]) || (got[name] == nil) != (want[name] == nil) {
			return fmt.Sprintf("%q is\n%q\nwant\n%q", name, got[name], want[name])
		}
	}
	return ""
}
