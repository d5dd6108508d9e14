package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// diskSize bounds what the runtimes and the registry of a run write. The file of the disk has only the blocks that are written.
const diskSize = 24 << 30

// mountDisk makes dir an empty file system: ext4 with the defaults of mkfs, which is what most nodes have. The host's own file
// system may be another one, or be full of what other programs have just removed. An ext4 without a journal avoids inodes that
// were freed in the last minutes: there, a pull took up to twice the CPU time, for every runtime. The mount goes together with
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
	// The kernel would otherwise write the tables of inodes while the bench measures.
	if err := command(ctx, nil, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image); err != nil {
		return err
	}
	// With direct access the kernel does not cache the disk a second time, as it does not with a real one.
	var device bytes.Buffer
	if err := command(ctx, &device, "losetup", "--direct-io=on", "--show", "--find", image); err != nil {
		return err
	}
	name := strings.TrimSpace(device.String())
	mountErr := command(ctx, nil, "mount", "-t", "ext4", name, dir)
	// The device goes with the mount.
	return errors.Join(mountErr, command(context.WithoutCancel(ctx), nil, "losetup", "--detach", name))
}

func command(ctx context.Context, stdout io.Writer, name string, args ...string) error {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = stdout, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("cannot make a disk for the runtimes: %s: %w: %s", name, err, stderr.Bytes())
	}
	return nil
}
