//go:build integration

package fork

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
)

// TestStageNamesTheTreeThatFails: the caller reports the part of the container that the tree is for.
func TestStageNamesTheTreeThatFails(t *testing.T) {
	require.Root(t)
	dir := t.TempDir()
	_, err := NewStage(t.Context(), []Tree{{Path: dir}, {Path: filepath.Join(dir, "absent")}})
	var refused *StageError
	if !errors.As(err, &refused) || refused.Index != 1 || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an absent tree: %v", err)
	}
	_, err = NewStage(t.Context(), []Tree{{Path: dir, MapIDs: filepath.Join(dir, "absent")}})
	if !errors.As(err, &refused) || refused.Index != 0 {
		t.Errorf("an absent user namespace: %v", err)
	}
}

// TestStageIsDetached: the clones are no mounts of the host, and are gone when the stage is closed.
func TestStageIsDetached(t *testing.T) {
	require.Root(t)
	stage, err := NewStage(t.Context(), []Tree{{Path: t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	c := stage.clones[0]
	var st unix.Statx_t
	if err := unix.Statx(c.fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st); err != nil || !c.dir || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		t.Errorf("the clone is %+v, %#x, %v", c, st.Attributes, err)
	}
	stage.Close()
	if err := unix.Statx(c.fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st); !errors.Is(err, unix.EBADF) {
		t.Errorf("the clone is still open: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if stage, err := NewStage(ctx, []Tree{{Path: "/proc"}}); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	} else if err == nil {
		stage.Close()
	}
}
