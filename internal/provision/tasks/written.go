package tasks

import (
	"path"

	"github.com/berthrun/berth/internal/provision"
)

// Writer is a task that writes files whose contents are known without a machine.
type Writer interface {
	provision.Task
	// Writes lists the files, in order. M is not set.
	Writes() []File
}

// Writes is the file itself; none if it should be absent.
func (f File) Writes() []File {
	if f.Absent {
		return nil
	}
	f.Mode = f.desired().mode
	return []File{f}
}

// Writes are the unit file and its drop-ins.
func (u Unit) Writes() []File { return writes(u.files()...) }

// Writes is the file that keeps the settings.
func (s Sysctls) Writes() []File { return writes(s.file()) }

// Writes is the file that loads the modules at boot.
func (m Modules) Writes() []File { return writes(m.file()) }

func writes(list ...desiredFile) []File {
	files := make([]File, len(list))
	for i, w := range list {
		files[i] = File{Path: w.path, Content: w.content, Mode: w.mode, Owner: w.owner, Group: w.group, Secret: w.secret}
	}
	return files
}

// Plain returns the file of an asset that is not an archive, judged by its first source's name: its
// path and mode, without content. ok is false for archives.
func (a Asset) Plain() (file File, ok bool) {
	if len(a.Ref.Sources) == 0 {
		return File{}, false
	}
	base := path.Base(a.Ref.Sources[0])
	if a.Ref.Format != "raw" {
		switch path.Ext(base) {
		case ".tar", ".tgz", ".gz", ".xz", ".txz", ".zst", ".zip":
			return File{}, false
		}
	}
	files, err := a.pick([]provision.Member{{Path: base}})
	if err != nil || len(files) != 1 {
		return File{}, false
	}
	return File{Path: files[0].path, Mode: files[0].mode}, true
}
