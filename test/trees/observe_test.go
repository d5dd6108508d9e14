//go:build integration && e2e

package trees

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// node is what is compared of a name, by the field. "links" are the other names of the inode.
type node map[string]string

// treeOf observes a tree: its nodes by their names, "." for the root.
func treeOf(t *testing.T, root string) map[string]node {
	t.Helper()
	tree, inodes := map[string]node{}, map[uint64][]string{}
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
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			inodes[st.Ino] = append(inodes[st.Ino], name)
		}
		tree[name], err = nodeOf(path, &st)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range inodes {
		if len(names) > 1 {
			for _, name := range names {
				tree[name]["links"] = fmt.Sprintf("%q", names)
			}
		}
	}
	return tree
}

func nodeOf(path string, st *unix.Stat_t) (node, error) {
	n := node{
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
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		return "", fmt.Errorf("listxattr %s: %w", path, err)
	}
	var all []string
	for name := range bytes.SplitSeq(list[:n], []byte{0}) {
		if len(name) == 0 {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, string(name), value)
		if err != nil {
			return "", fmt.Errorf("getxattr %s of %s: %w", name, path, err)
		}
		all = append(all, fmt.Sprintf("%s=%q", name, value[:n]))
	}
	slices.Sort(all)
	return strings.Join(all, " "), nil
}

// differences lists, sorted, the fields in which two trees differ. A time of the other tree that is after start is the clock's:
// where described does not have the directory, no layer has a time for it. A layer may also delete and not describe it again.
func differences(berth, other map[string]node, start time.Time, described map[string]bool) []difference {
	var all []difference
	names := map[string]bool{}
	for name := range berth {
		names[name] = true
	}
	for name := range other {
		names[name] = true
	}
	late := start.UTC().Format("2006-01-02T15:04:05")
	for name := range names {
		ours, theirs := berth[name], other[name]
		if ours == nil || theirs == nil {
			all = append(all, difference{name, "presence", fmt.Sprint(ours != nil), fmt.Sprint(theirs != nil)})
			continue
		}
		for _, field := range []string{"mode", "owner", "mtime", "size", "content", "target", "device", "xattrs", "links"} {
			if ours[field] == theirs[field] {
				continue
			}
			clock := field == "mtime" && theirs[field] >= late && theirs[field][:4] == late[:4]
			if clock && (!described[name] || ours[field] >= late) {
				continue
			}
			all = append(all, difference{name, field, ours[field], theirs[field]})
		}
	}
	slices.SortFunc(all, func(a, b difference) int { return strings.Compare(a.name+"\x00"+a.field, b.name+"\x00"+b.field) })
	return all
}

// difference is one field of one name.
type difference struct{ name, field, berth, other string }

func (d difference) String() string {
	return fmt.Sprintf("%.80q: %s is %.200q in berth, %.200q in the other tree", d.name, d.field, d.berth, d.other)
}

// allocated is what a file takes on disk, in bytes.
func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}
