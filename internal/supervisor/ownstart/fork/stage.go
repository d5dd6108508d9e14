package fork

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
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

// Stage has detached clones of trees for one child.
type Stage struct{ clones []clone }

// clone is a detached tree. dir is true when its root is a directory.
type clone struct {
	fd  int
	dir bool
}

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
	for _, c := range s.clones {
		unix.Close(c.fd)
	}
	s.clones = nil
}

func cloneTrees(list []Tree) (*Stage, error) {
	s := &Stage{}
	for i := range list {
		c, err := cloneTreeOf(&list[i])
		if err != nil {
			s.Close()
			return nil, &StageError{i, err}
		}
		s.clones = append(s.clones, c)
	}
	return s, nil
}

func cloneTreeOf(t *Tree) (clone, error) {
	fd, err := trees.Clone(unix.AT_FDCWD, t.Path, true)
	if err != nil {
		return clone{}, err
	}
	err = trees.Propagate(fd, unix.MS_SLAVE|unix.MS_REC)
	if err == nil && t.MapIDs != "" {
		err = trees.MapIDs(fd, t.MapIDs, t.MapAll)
	}
	var st unix.Statx_t
	if err == nil {
		err = unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	}
	if err != nil {
		unix.Close(fd)
		return clone{}, err
	}
	return clone{fd, st.Mode&unix.S_IFMT == unix.S_IFDIR}, nil
}

// layOut mounts the clones in a copy of the calling thread's mount namespace, which it enters. t is the
// thread's table of descriptors.
func (s *Stage) layOut(t *table) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	options := fmt.Sprintf("size=4k,nr_inodes=%d,mode=0555", len(s.clones)+1)
	if err := unix.Mount("berth", "/"+order.RootName, "tmpfs", flags, options); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	for i, c := range s.clones {
		var err error
		if c.fd, err = t.take(c.fd); err != nil {
			return err
		}
		if err := c.mountOn(order.StagedAt(i)); err != nil {
			return err
		}
	}
	return nil
}

// mountOn mounts the clone on a directory or a file that it makes. It does not wait for the file system.
func (c clone) mountOn(at string) error {
	var err error
	if c.dir {
		err = unix.Mkdir(at, 0o555)
	} else {
		err = unix.Mknod(at, unix.S_IFREG|0o444, 0)
	}
	if err != nil {
		return fmt.Errorf("make a mount point: %w", err)
	}
	if err := unix.MoveMount(c.fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}
