package doctor

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// host finds what engine and host lack for the nodes that there are: limits, delegation of
// cgroups, modules of the kernel.
func (d *diagnosis) host(ctx context.Context) error {
	all, err := inventory.AllNodes(ctx, d.Provider)
	if err != nil {
		return err
	}
	for _, unmet := range d.Provider.Check(max(1, len(all))) {
		d.add(unmet.Level, "host", unmet.Evidence, unmet.Fix)
	}
	return nil
}

// With less space a disk is full for a new cluster, whose nodes take 2 GiB with their images, or
// may be full soon.
const (
	leastFree  = 1 << 30
	leastShare = 0.05
)

// full is the level of a finding about a disk, or its inodes, with so little left.
func full(free, size, least uint64) finding.Level {
	switch {
	case size == 0:
		return finding.OK // unknown
	case free < least:
		return finding.Problem
	case float64(free) < leastShare*float64(size):
		return finding.Warning
	}
	return finding.OK
}

// engineDisk checks the free space where the engine keeps images and volumes.
func (d *diagnosis) engineDisk(context.Context) error {
	f := d.Provider.Facts()
	if f.Root == "" || f.Remote {
		return d.skip(d.Provider.Name() + " does not say where it keeps images, or is on another host")
	}
	free, err := sysfile.DiskFree(f.Root)
	if err != nil {
		return err
	}
	size, err := sysfile.SizeOf(f.Root)
	if err != nil {
		return err
	}
	fix := roomFix(d.Provider.Name())
	if level := full(uint64(free), size.Bytes, leastFree); level != finding.OK {
		d.add(level, f.Root, fmt.Sprintf("%s has %d MiB of %d MiB left", f.Root, free>>20, size.Bytes>>20), fix)
	}
	if level := full(size.InodesFree, size.Inodes, 1000); level != finding.OK {
		d.add(level, f.Root, fmt.Sprintf("%s has room for %d of %d files left", f.Root, size.InodesFree, size.Inodes), fix)
	}
	return nil
}

// roomFix is what makes room where an engine keeps images. berth has no command that removes all unused ones.
func roomFix(engine string) string {
	if engine == "berth" {
		return "remove unused images: berth image ls lists them, berth image rm removes them"
	}
	return "remove unused images and containers: " + engine + " system prune"
}

// registry checks the registry, if there is one.
func (d *diagnosis) registry(ctx context.Context) error {
	s, err := d.Registry().Status(ctx)
	if errors.Is(err, errs.NotFound) {
		d.add(finding.OK, "", "there is none", "")
		return nil
	}
	if err == nil && !s.Running {
		d.add(finding.Warning, plan.RegistryName, fmt.Sprintf("%s is %s, and nodes pull images of it", plan.RegistryName, s.State), "berth cluster registry start")
	}
	return err
}
