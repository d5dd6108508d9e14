package repair

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// To read both databases takes a process each, which is most of the time that a start takes. A
// daemon that ends in order leaves a note of how it has closed them: Root/closed. The next start in
// the same boot needs no check of a file that has not been touched since. The note is gone while a
// daemon runs, so after a crash, a reboot or a loss of power both are read.

// closedNote is the content of Root/closed.
type closedNote struct {
	Boot  string               `json:"boot"`
	Files map[string]fileState `json:"files"`
}

// fileState changes with every write to a file and with its replacement. The times are in
// nanoseconds since 1970.
type fileState struct {
	Device   uint64 `json:"device"`
	Inode    uint64 `json:"inode"`
	Size     int64  `json:"size"`
	Modified int64  `json:"modified"`
	Changed  int64  `json:"changed"`
}

func stateOf(info os.FileInfo) fileState {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileState{}
	}
	return fileState{Device: st.Dev, Inode: st.Ino, Size: st.Size, Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano()}
}

// databases are the files that Inspect reads.
func (r Repairer) databases() []string {
	return []string{r.Paths.MetadataFile(), r.Paths.SnapshotsFile()}
}

func (r Repairer) closedPath() string { return filepath.Join(r.Paths.Root, "closed") }

// Closed notes that both databases are closed and intact. It is the last step of an end in order.
func (r Repairer) Closed() error {
	boot, err := sysproc.BootID()
	if err != nil {
		return err
	}
	note := closedNote{Boot: boot, Files: map[string]fileState{}}
	for _, path := range r.databases() {
		info, err := os.Lstat(path)
		if err != nil {
			return errs.IgnoreNotExist(err)
		}
		note.Files[path] = stateOf(info)
	}
	data, err := json.Marshal(note)
	if err != nil {
		return err
	}
	return sysfile.Replace(r.closedPath(), data)
}

// takeClosed removes the note and returns the states that need no check, none if the note cannot be
// used or stays.
func (r Repairer) takeClosed() map[string]fileState {
	data, err := os.ReadFile(r.closedPath())
	if err != nil {
		return nil
	}
	if err := os.Remove(r.closedPath()); err != nil {
		r.Log.Warn("cannot remove the note about a clean end of the image store; checking its databases", "error", err)
		return nil
	}
	var note closedNote
	boot, err := sysproc.BootID()
	if err != nil || json.Unmarshal(data, &note) != nil || note.Boot != boot {
		return nil
	}
	return note.Files
}
