package local

import (
	"context"
	"fmt"
	"os"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/unpack"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

var _ image.Changer = (*Images)(nil)

// Change implements image.Changer, in the helper that unpacks layers.
func (s *Images) Change(ctx context.Context, rootfs string, changes *os.File, work string) (err error) {
	if err := s.ready(ctx); err != nil {
		return err
	}
	free, err := sysfile.DiskFree(work)
	if err != nil {
		return fmt.Errorf("cannot change a root filesystem: %w", err)
	}
	_, err = s.runner.Run(ctx, unpack.Job{Upper: rootfs, MaxBytes: free}, changes, nil)
	return err
}
