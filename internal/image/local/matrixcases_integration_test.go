//go:build integration

package local

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// damageCase is one kind of damage to one object of a store.
type damageCase struct {
	// object is where it is, for people; path is that below the store's root.
	object, path string
	damage       string
	change       func(path, outside string) error
	// noted is whether the note of a clean end is there, and fits the databases as they are after the damage, as it does
	// when a disk changes a block by itself.
	noted bool
	// inUse is damage to what a running container sees, which stays so until the container is removed.
	inUse bool
	// quick cases run with every test run.
	quick bool
}

func (c damageCase) String() string {
	marker := "no note"
	if c.noted {
		marker = "note"
	}
	return fmt.Sprintf("%s, %s, %s", c.object, c.damage, marker)
}

// kind is one way to damage an object at path. outside is a directory that is not the store's.
type kind struct {
	name   string
	change func(path, outside string) error
}

// replaced has something else in the place of the object, whatever that is.
func replaced(name string, by func(path, outside string) error) kind {
	return kind{name, func(path, outside string) error {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		return by(path, outside)
	}}
}

// rewritten changes the content of a file. Mode and place stay.
func rewritten(name string, change func(data []byte) []byte) kind {
	return kind{name, func(path, _ string) error {
		data, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		return os.WriteFile(path, change(data), 0o600)
	}}
}

func flipped(at func(n int) int) func(data []byte) []byte {
	return func(data []byte) []byte {
		if len(data) > 0 {
			data[at(len(data))] ^= 1
		}
		return data
	}
}

// fileKinds are the kinds of damage to a file.
func fileKinds() []kind {
	return []kind{
		replaced("missing", func(string, string) error { return nil }),
		rewritten("empty", func([]byte) []byte { return nil }),
		rewritten("truncated", func(data []byte) []byte { return data[:len(data)/2] }),
		rewritten("zeroed", func(data []byte) []byte { clear(data); return data }),
		rewritten("bit flipped", flipped(func(n int) int { return n / 2 })),
		rewritten("garbage", func(data []byte) []byte { return bytes.Repeat([]byte{0xb5}, max(len(data), 10)) }),
		rewritten("grown", func(data []byte) []byte { return append(data, "more"...) }),
		{"wrong mode", func(path, _ string) error {
			if err := os.Chmod(path, 0o777); !os.IsNotExist(err) {
				return err
			}
			return os.WriteFile(path, nil, 0o777) // a note that is there only at times
		}},
		{"a link to a file outside", func(path, outside string) error {
			// The bytes are the same; only the place is another.
			data, err := os.ReadFile(path)
			if err != nil && !os.IsNotExist(err) {
				return err
			}
			target := filepath.Join(outside, "linked")
			if err := os.WriteFile(target, data, 0o600); err != nil {
				return err
			}
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			return os.Symlink(target, path)
		}},
		replaced("a link to nothing", func(path, outside string) error { return os.Symlink(filepath.Join(outside, "none"), path) }),
		replaced("a directory", func(path, _ string) error {
			return os.MkdirAll(filepath.Join(path, "deep/deeper"), 0o700)
		}),
		replaced("a fifo", func(path, _ string) error { return unix.Mkfifo(path, 0o600) }),
	}
}

// directoryKinds are the kinds of damage to a directory.
func directoryKinds() []kind {
	return []kind{
		replaced("missing", func(string, string) error { return nil }),
		replaced("empty", func(path, _ string) error { return os.Mkdir(path, 0o700) }),
		replaced("a file", func(path, _ string) error { return os.WriteFile(path, []byte("x"), 0o600) }),
		replaced("a link to a directory outside", func(path, outside string) error {
			return os.Symlink(filepath.Join(outside, "dir"), path)
		}),
		replaced("a link to nothing", func(path, outside string) error { return os.Symlink(filepath.Join(outside, "none"), path) }),
		replaced("a fifo", func(path, _ string) error { return unix.Mkfifo(path, 0o600) }),
		// Some directories are there only at times.
		{"with a foreign directory in it", func(path, _ string) error {
			return os.MkdirAll(filepath.Join(path, "lost+found/deep"), 0o700)
		}},
		{"with a fifo in it", func(path, _ string) error {
			return errors.Join(os.MkdirAll(path, 0o700), unix.Mkfifo(filepath.Join(path, "fifo"), 0o600))
		}},
		{"with a link outside in it", func(path, outside string) error {
			// Layers have a link of their own.
			return errors.Join(os.MkdirAll(path, 0o700), os.Symlink(filepath.Join(outside, "dir"), filepath.Join(path, "leads-out")))
		}},
		{"wrong mode", func(path, _ string) error { return errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, 0o1777)) }},
	}
}

// entryKinds are the kinds of damage to the files of an unpacked layer at path: it has base, a file
// with an attribute, link, a link to it, and dir, an opaque directory with a file in it.
func entryKinds() []kind {
	in := func(name string, k kind) kind {
		return kind{name + " " + k.name, func(path, outside string) error { return k.change(filepath.Join(path, name), outside) }}
	}
	var all []kind
	for _, k := range fileKinds() {
		all = append(all, in("dir/own", k))
	}
	owned := func(path, _ string) error { return os.Lchown(path, 7, 7) }
	all = append(all,
		kind{"file without its attribute", func(path, _ string) error { return unix.Removexattr(filepath.Join(path, "attr"), "user.x") }},
		kind{"file with another attribute", func(path, _ string) error {
			return unix.Setxattr(filepath.Join(path, "attr"), "user.y", []byte("z"), 0)
		}},
		kind{"directory that is not opaque", func(path, _ string) error {
			return unix.Removexattr(filepath.Join(path, "dir"), "trusted.overlay.opaque")
		}},
		in("attr", kind{"with another owner", owned}),
		in("link", kind{"with another owner", owned}),
		in("link", replaced("to another target", func(path, _ string) error { return os.Symlink("/etc/shadow", path) })),
		in("link", replaced("that is a file", func(path, _ string) error { return os.WriteFile(path, nil, 0o777) })),
		in("dir", replaced("missing", func(string, string) error { return nil })),
		in("dir", replaced("a link to a directory outside", func(path, outside string) error { return os.Symlink(filepath.Join(outside, "dir"), path) })),
		in("dir", kind{"wrong mode", func(path, _ string) error { return os.Chmod(path, 0o777) }}),
		kind{"extra file", func(path, _ string) error { return os.WriteFile(filepath.Join(path, "extra"), nil, 0o4755) }},
		kind{"extra directory", func(path, _ string) error { return os.MkdirAll(filepath.Join(path, "extra/deep"), 0o755) }},
		kind{"extra device", func(path, _ string) error {
			return unix.Mknod(filepath.Join(path, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
		}},
	)
	return all
}

// pageKinds damage single pages of a database.
func pageKinds(pages int) []kind {
	var all []kind
	for n := range pages {
		page := func(data []byte) []byte {
			size := os.Getpagesize()
			if len(data) < (n+1)*size {
				return nil
			}
			return data[n*size : (n+1)*size]
		}
		for name, change := range map[string]func(data []byte){
			"zeroed":      func(data []byte) { clear(data) },
			"bit flipped": func(data []byte) { flipped(func(int) int { return 10 })(data) },
			"garbage":     func(data []byte) { copy(data, bytes.Repeat([]byte{0xb5, 7, 1}, len(data))) },
		} {
			all = append(all, rewritten(fmt.Sprintf("page %d %s", n, name), func(data []byte) []byte { change(page(data)); return data }))
		}
	}
	slices.SortFunc(all, func(a, b kind) int { return strings.Compare(a.name, b.name) })
	return all
}

// quick are cases that have found a fault of their own.
var quick = []string{
	"config of an image, bit flipped",
	"config of an image in use, truncated",
	"copy of the names, a fifo",
	"trash, a link to a directory outside",
}

// damageCases are all cases for a store that has what f names.
func damageCases(f *damagedStore) []damageCase {
	var all []damageCase
	add := func(object, path string, kinds []kind, inUse bool) {
		for _, k := range kinds {
			for _, noted := range []bool{false, true} {
				c := damageCase{object: object, path: path, damage: k.name, change: k.change, noted: noted, inUse: inUse}
				c.quick = !noted && slices.Contains(quick, object+", "+k.name)
				all = append(all, c)
			}
		}
	}
	for object, path := range f.files {
		add(object, path, fileKinds(), false)
	}
	for object, path := range f.directories {
		add(object, path, directoryKinds(), false)
	}
	for object, path := range f.databases {
		add(object, path, pageKinds(8), false)
	}
	add("files of a layer", f.idleLayer, entryKinds(), false)
	add("files of a layer in use", f.usedLayer, entryKinds(), true)
	slices.SortStableFunc(all, func(a, b damageCase) int { return strings.Compare(a.object, b.object) })
	return all
}

// listing describes each entry below a directory: mode, owner, content, target and attributes.
func listing(dir string) (map[string]string, error) {
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%o %d:%d %d", st.Mode, st.Uid, st.Gid, st.Rdev)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			value := make([]byte, 100)
			n, _ := unix.Lgetxattr(path, "user.x", value)
			m, _ := unix.Lgetxattr(path, "user.y", value[50:])
			text += fmt.Sprintf(" %q %q %q", data, value[:max(n, 0)], value[50:50+max(m, 0)])
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += " -> " + target
		}
		all[name] = text
		return nil
	})
	return all, err
}

// firstDifference is a difference of two listings, "" for none.
func firstDifference(got, want map[string]string) string {
	for name, text := range want {
		if got[name] != text {
			return fmt.Sprintf("%s is %.90q, want %.90q", name, got[name], text)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			return name + " is extra"
		}
	}
	return ""
}

// caseTimeout is how long a store may take to open, be checked and closed.
const caseTimeout = 3 * time.Minute
