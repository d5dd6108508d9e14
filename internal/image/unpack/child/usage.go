package child

import (
	"os"

	"golang.org/x/sys/unix"
)

// Usage is what the files of a layer take on disk, as sysfile.UsageOf counts it. To know it from the writing of the files spares
// the daemon a walk through them.
type Usage struct {
	Bytes  int64 `json:"bytes"`
	Inodes int64 `json:"inodes"`
}

// counter adds up what a layer takes. It does not know it of a layer that removes, or copies, something: most do not.
type counter struct {
	used    Usage
	unknown bool
	// made are the directories. They grow with what is in them.
	made []string
}

func (c *counter) add(st *unix.Stat_t) {
	c.used.Inodes++
	c.used.Bytes += st.Blocks * 512 // the unit of st_blocks
}

// directories adds those that were made, and top. It returns nil if the usage is not known.
func (c *counter) directories(top string) (*Usage, error) {
	if c.unknown {
		return nil, nil
	}
	for _, dir := range append(c.made, top) {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil {
			return nil, &os.PathError{Op: "lstat", Path: dir, Err: err}
		}
		c.add(&st)
	}
	return &c.used, nil
}
