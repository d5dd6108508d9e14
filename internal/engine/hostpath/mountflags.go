package hostpath

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// MountFlags are the flags of the mount that path is on, as options of a mount in an OCI
// spec. Times of access are not among them: the kernel keeps those of a bind mount whose
// flags change.
func MountFlags(path string) ([]string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, unusable(path, fmt.Errorf("cannot look at its file system: %w", err))
	}
	var flags []string
	for _, known := range []struct {
		bit  int64
		name string
	}{
		{unix.ST_RDONLY, "ro"},
		{unix.ST_NOSUID, "nosuid"},
		{unix.ST_NODEV, "nodev"},
		{unix.ST_NOEXEC, "noexec"},
		{stNoSymfollow, "nosymfollow"},
	} {
		if int64(st.Flags)&known.bit != 0 {
			flags = append(flags, known.name)
		}
	}
	return flags, nil
}

// stNoSymfollow is ST_NOSYMFOLLOW, which x/sys does not have.
const stNoSymfollow = 0x2000
