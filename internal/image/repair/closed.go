package repair

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// To read both databases takes a process each. So a daemon leaves a note of how they are: Root/closed. The next start in
// the same boot needs no check of a file that has not been touched since: a daemon that is killed while it does not
// write leaves intact databases. The note is gone from the start of a daemon until its databases have been quiet for a
// moment, and again when they change. After a reboot or a loss of power both are read.

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
	// Sum is the CRC-32C of the content: a disk that changes a bit by itself changes no time.
	Sum string `json:"sum"`
}

func stateOf(path string, info os.FileInfo) (fileState, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return fileState{}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return fileState{}, err
	}
	defer f.Close()
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli)) // by an instruction of the processor: it takes a millisecond or two
	if _, err := io.Copy(sum, f); err != nil {
		return fileState{}, err
	}
	return fileState{
		Device: st.Dev, Inode: st.Ino, Size: st.Size, Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano(), Sum: hex.EncodeToString(sum.Sum(nil)),
	}, nil
}

// sameButContent reports whether a file that was noted has not been written to since, and yet has other content.
func (f fileState) sameButContent(now fileState) bool {
	noted := f
	noted.Sum = now.Sum
	return f.Sum != "" && noted == now && f.Sum != now.Sum
}

// databases are the files that Inspect reads.
func (r Repairer) databases() []string {
	return []string{r.Paths.MetadataFile(), r.Paths.SnapshotsFile()}
}

func (r Repairer) closedPath() string { return filepath.Join(r.Paths.Root, "closed") }

// settleTime is how long a database was not written to when it is noted. The kernel's times of a file change a few
// hundred times a second at least: a later write has another time than the one that is noted.
const settleTime = time.Second

// Closed notes that both databases are closed and intact. It is the last step of an end in order.
func (r Repairer) Closed() error {
	_, err := r.note(math.MaxInt64)
	return err
}

// Quiet notes that both databases are intact as they are now. settled is false, and nothing is noted, when one was
// written to a moment ago. A write to them after the note needs no other call: the note does not fit them any more.
func (r Repairer) Quiet() (settled bool, err error) {
	return r.note(time.Now().Add(-settleTime).UnixNano())
}

// note writes the note if it would change, unless a database was written to after a time, in nanoseconds since 1970.
func (r Repairer) note(latest int64) (written bool, err error) {
	boot, err := sysproc.BootID()
	if err != nil {
		return false, err
	}
	note := closedNote{Boot: boot, Files: map[string]fileState{}}
	for _, path := range r.databases() {
		info, err := os.Lstat(path)
		if err != nil {
			return true, errs.IgnoreNotExist(err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Ctim.Nano() > latest {
			return false, nil
		}
		state, err := stateOf(path, info)
		if err != nil {
			return true, err
		}
		if after, err := os.Lstat(path); err != nil || !after.ModTime().Equal(info.ModTime()) {
			return false, err // it was written to while it was read
		}
		note.Files[path] = state
	}
	data, err := json.Marshal(note)
	if err != nil {
		return false, err
	}
	if now, err := os.ReadFile(r.closedPath()); err == nil && bytes.Equal(now, data) {
		return true, nil
	}
	return true, sysfile.Replace(r.closedPath(), data)
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
