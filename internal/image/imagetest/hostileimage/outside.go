package hostileimage

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// hostFiles are files of the machine that hostile images name.
func hostFiles() []string {
	return []string{"/", "/etc", "/etc/passwd", "/etc/shadow", "/etc/hosts", "/root", "/tmp"}
}

// Outside is what nothing of a hostile image may create, change or read: directories of a test, and files of the machine.
type Outside struct {
	dirs   []string
	skip   map[string]bool
	before map[string]string
}

// Decoy makes a directory of the host with the names that hostile images look for.
func Decoy(t testing.TB, dir string) {
	t.Helper()
	for _, sub := range []string{"dir", "etc", "empty"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"secret", "kept", "dir/kept", "etc/passwd", "etc/shadow", "etc/group"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("of the host\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		// A read sets the time of the last one, when that is before the time of the last change.
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, name), []unix.Timespec{{Sec: 1}, {Sec: 2}}, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// SeesReads reports whether the file system of dir records when a file was read.
func SeesReads(t testing.TB, dir string) bool {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	return fs.Flags&unix.ST_NOATIME == 0
}

// Watch records dirs, but for the paths in skip.
func Watch(t testing.TB, dirs, skip []string) *Outside {
	t.Helper()
	o := &Outside{dirs: dirs, skip: map[string]bool{}}
	for _, path := range skip {
		o.skip[path] = true
	}
	o.before = o.look(t)
	return o
}

// Differences are what has changed since: modes, owners, sizes, links and times, and the time of the last read of files.
func (o *Outside) Differences(t testing.TB) (list []string) {
	t.Helper()
	now := o.look(t)
	names := maps.Clone(o.before)
	maps.Copy(names, now)
	for name := range names {
		if o.before[name] != now[name] {
			list = append(list, fmt.Sprintf("%s was %q, is %q", name, o.before[name], now[name]))
		}
	}
	return list
}

// look reads no file: that would set the time of its last read.
func (o *Outside) look(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range o.dirs {
		if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if o.skip[path] {
				if entry.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				return err
			}
			all[path] = fmt.Sprintf("%o %d:%d %d links %d", st.Mode, st.Uid, st.Gid, st.Rdev, st.Nlink)
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				all[path] += fmt.Sprintf(" size %d changed %d.%09d %d.%09d read %d", st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec, st.Atim.Sec)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range hostFiles() {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err == nil { // others read them, and make files in them
			all[path] = fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid)
			if st.Mode&unix.S_IFMT == unix.S_IFREG {
				all[path] += fmt.Sprintf(" links %d size %d changed %d.%09d", st.Nlink, st.Size, st.Mtim.Sec, st.Mtim.Nsec)
			}
		}
	}
	return all
}
