// Package restoring has the steps by which a container continues the processes of a checkpoint. The archive is read
// (package intake), its changes are applied to the root filesystem of the container, the images for CRIU are
// written (package criuimage), the OCI runtime restores the processes and leaves them stopped, and the kernel is asked
// what they may do (package frozen).
package restoring

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/engine/native/checkpoint"
	"github.com/berthrun/berth/internal/engine/native/checkpoint/criuimage"
	"github.com/berthrun/berth/internal/engine/native/checkpoint/frozen"
	"github.com/berthrun/berth/internal/engine/native/checkpoint/intake"
	"github.com/berthrun/berth/internal/engine/native/checkpoint/mountplan"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// Files is the directory of one restore.
type Files string

// The directories in it that this package adds.
const (
	imagesName = "images"
	workName   = "work"
	// descriptorsName is the file in which runc finds what descriptors 0 to 2 are.
	descriptorsName = "descriptors.json"
)

// Images is the directory of what package criuimage writes.
func (f Files) Images() string { return filepath.Join(string(f), imagesName) }

// Work is where CRIU writes its log.
func (f Files) Work() string { return filepath.Join(string(f), workName) }

// Remove removes the directory.
func (f Files) Remove() error { return os.RemoveAll(string(f)) }

// Read reads an archive, a file at location or, with "", the directory from, and returns the references of the base
// image: ids, and names with a digest. A name without a digest would let the archive choose what another name stands for.
// name is that of the container that the archive has to be of, "" for any.
func (f Files) Read(ctx context.Context, location, from, name string) (base []string, err error) {
	if err := f.Remove(); err != nil { // of an earlier attempt
		return nil, fmt.Errorf("cannot remove the files of an earlier restore: %w", err)
	}
	var c *intake.Contents
	if location != "" {
		c, err = intake.FromFile(ctx, location, string(f))
	} else {
		c, err = intake.FromDirectory(ctx, from, string(f))
	}
	if err != nil {
		return nil, err
	}
	if name != "" && c.Name != name {
		return nil, fmt.Errorf("config.dump of the archive is that of container %.200q, not %q: %w", c.Name, name, errs.Invalid)
	}
	for _, ref := range []string{c.ImageRef, c.Image} {
		if byDigest.MatchString(ref) {
			base = append(base, ref)
		}
	}
	if len(base) == 0 {
		return nil, fmt.Errorf("config.dump of the archive names no base image by a digest (rootfsImageRef %.200q, rootfsImage %.200q): %w", c.ImageRef, c.Image, errs.Invalid)
	}
	return base, nil
}

// byDigest matches ids of images, and names with a digest.
var byDigest = regexp.MustCompile(`^((sha256:)?|[^\s]+@sha256:)[0-9a-f]{64}$`)

// Change applies the changes of the archive to a mounted root filesystem.
func (f Files) Change(ctx context.Context, rootfs string, changer image.Changer) error {
	c, err := intake.Open(string(f))
	if err != nil {
		return err
	}
	if err := c.Delete(ctx, rootfs); err != nil {
		return err
	}
	changes, _, err := c.Changes(ctx)
	if err != nil || changes == nil {
		return err
	}
	defer changes.Close()
	if err := changer.Change(ctx, rootfs, changes, string(f)); err != nil {
		return fmt.Errorf("rootfs-diff.tar of the archive: %w", err)
	}
	return nil
}

// Fit writes the images for CRIU. spec is the whole OCI spec of the request.
func (f Files) Fit(ctx context.Context, spec *specs.Spec) error {
	if err := criuimage.CheckSpec(spec); err != nil {
		return err
	}
	c, err := intake.Open(string(f))
	if err != nil {
		return err
	}
	for _, dir := range []string{f.Images(), f.Work()} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("cannot make a directory of a restore: %w", errs.OfDisk(err))
		}
	}
	fitted, err := criuimage.Fit(ctx, c.Images, f.Images(), &criuimage.Request{Spec: spec, Rootfs: spec.Root.Path, Limits: limits})
	if err != nil {
		return err
	}
	text, err := json.Marshal(fitted.Stdio)
	if err != nil {
		return err
	}
	return errs.OfDisk(os.WriteFile(filepath.Join(f.Images(), descriptorsName), text, 0o600))
}

// limits are the hard limits of this process, which containers have that the request gives none.
func limits(resource int) uint64 {
	var limit unix.Rlimit
	if err := unix.Prlimit(0, resource, nil, &limit); err != nil {
		return math.MaxUint64
	}
	return limit.Max
}

// Cause adds what CRIU has written into its log to the error of a restore.
func (f Files) Cause(err error) error {
	data, readErr := os.ReadFile(filepath.Join(f.Work(), "restore.log"))
	if readErr != nil {
		return err
	}
	why := checkpoint.Reason(data)
	if why == "" {
		return err
	}
	return fmt.Errorf("CRIU cannot restore its processes: %s: %w", why, cmp.Or(errs.Kind(err), err))
}

// Check returns an error when the restored processes, which are stopped, may do more than the request allows. cgroups are
// the directories of the container's cgroup.
func Check(init int, spec *specs.Spec, cgroups map[string]string) error {
	mounts, err := mountplan.Of(spec, spec.Root.Path)
	if err != nil {
		return err
	}
	if len(cgroups) == 0 || init <= 1 {
		return errors.New("the supervisor does not say where the restored processes are")
	}
	restored := frozen.Restored{Init: init, Spec: spec, Mounts: mounts, Rootfs: spec.Root.Path, Cgroups: cgroups, Limits: limits}
	return restored.Check()
}
