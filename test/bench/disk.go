package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// diskSize bounds what the runtimes and the registry of a run write. The file of the disk has only the blocks that are written.
const diskSize = 24 << 30

// mountDisk makes dir an empty file system: ext4 with the defaults of mkfs, which is what most nodes have. The host's own file
// system may be another one, or be full of what other programs have just removed. An ext4 without a journal avoids inodes that
// were freed in the last minutes: there, a file of an image took twice the time for every runtime. The mount goes together with
// the mount namespace of the bench, and the disk's file is removed as soon as it is mounted.
func mountDisk(ctx context.Context, dir string) error {
	image := dir + ".ext4"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	file, err := os.Create(image)
	if err != nil {
		return err
	}
	defer os.Remove(image)
	defer file.Close()
	if err := file.Truncate(diskSize); err != nil {
		return fmt.Errorf("cannot make the file of a disk: %w", err)
	}
	for _, argv := range [][]string{
		// The kernel would otherwise write the tables of inodes while the bench measures.
		{"mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image},
		{"mount", "-t", "ext4", "-o", "loop", image, dir},
	} {
		if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("cannot make a disk for the runtimes: %s: %w: %s", argv[0], err, out)
		}
	}
	return nil
}
