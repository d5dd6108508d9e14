package fork

import (
	"context"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/trees"
)

// Tree is a tree of mounts of the host.
type Tree struct {
	Path string
	// MapIDs is the path of a user namespace that maps the owners of its files, "" for none. MapAll maps
	// those of the mounts below it, too.
	MapIDs string
	MapAll bool
}

// StageError is the error of one tree of a stage.
type StageError struct {
	// Index is the place of the tree in the list.
	Index int
	Err   error
}

func (e *StageError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *StageError) Unwrap() error { return e.Err }

// StagedAt is where a child finds the tree with a number of its stage.
func StagedAt(index int) string { return "/" + RootName + "/" + strconv.Itoa(index) }

// Stage has detached clones of trees for one child.
type Stage struct{ clones []int }

// NewStage clones trees of the caller's mount namespace, with all that is mounted in them. What happens in
// the clones stays there. The error is a *StageError, or ctx.Err() when ctx ends first: a filesystem
// may hang. The caller closes the stage.
func NewStage(ctx context.Context, list []Tree) (*Stage, error) {
	type result struct {
		stage *Stage
		err   error
	}
	done := make(chan result, 1)
	go func() {
		stage, err := cloneTrees(list)
		done <- result{stage, err}
	}()
	select {
	case r := <-done:
		return r.stage, r.err
	case <-ctx.Done():
	}
	go func() {
		if r := <-done; r.err == nil {
			r.stage.Close()
		}
	}()
	return nil, ctx.Err()
}

// Close closes the clones. Those that a child has got stay.
func (s *Stage) Close() {
	for _, fd := range s.clones {
		unix.Close(fd)
	}
	s.clones = nil
}

func cloneTrees(list []Tree) (*Stage, error) {
	s := &Stage{}
	for i := range list {
		fd, err := cloneTreeOf(&list[i])
		if err != nil {
			s.Close()
			return nil, &StageError{i, err}
		}
		s.clones = append(s.clones, fd)
	}
	return s, nil
}

func cloneTreeOf(t *Tree) (int, error) {
	fd, err := trees.Clone(unix.AT_FDCWD, t.Path, true)
	if err != nil {
		return -1, err
	}
	err = trees.Propagate(fd, unix.MS_SLAVE|unix.MS_REC)
	if err == nil && t.MapIDs != "" {
		err = trees.MapIDs(fd, t.MapIDs, t.MapAll)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// layOut mounts the clones in a copy of the calling thread's mount namespace, which it enters.
func (s *Stage) layOut() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	options := fmt.Sprintf("size=4k,nr_inodes=%d,mode=0555", len(s.clones)+1)
	if err := unix.Mount("berth", "/"+RootName, "tmpfs", flags, options); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	for i, clone := range s.clones {
		if err := layOutOne(clone, StagedAt(i)); err != nil {
			return err
		}
	}
	return nil
}

func layOutOne(clone int, at string) error {
	var st unix.Stat_t
	if err := unix.Fstat(clone, &st); err != nil {
		return fmt.Errorf("stat a mount: %w", err)
	}
	var err error
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = unix.Mkdir(at, 0o555)
	} else {
		err = unix.Mknod(at, unix.S_IFREG|0o444, 0)
	}
	if err != nil {
		return fmt.Errorf("make a mount point: %w", err)
	}
	if err := unix.MoveMount(clone, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}
