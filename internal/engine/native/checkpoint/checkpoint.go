// Package checkpoint writes a running container into an archive, by the program CRIU.
//
// CRIU stops the processes as their tracer, writes their memory and their kernel objects into image files, and
// lets them go on. Before they go on, it runs a script of this package, and waits for it: meanwhile the changes of
// the root filesystem are added, so that memory and files are of one moment. When the script fails, CRIU undoes what it
// has done. The kernel lets the processes go on when CRIU is killed.
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Container is the container to write.
type Container struct {
	// Pidfd is of its init, whose pid is Pid.
	Pidfd *os.File
	Pid   int
	Spec  *specs.Spec
	// Config describes it for people and for tools.
	Config Config
	// Dir is a directory on disk for the work. It is made, and removed at the end.
	Dir string
	// Location is the absolute path of the archive. Nothing may be there yet.
	Location string
	// Reached is called at each stage, nil for nothing to do; see engine.CheckpointSpec.
	Reached func(ctx context.Context, stage engine.CheckpointStage) error
}

// Config is the file config.dump of an archive. The fields are those that checkpointctl, CRI-O and containerd
// have in it.
type Config struct {
	ID              string    `json:"id"`
	Name            string    `json:"name"`
	RootfsImage     string    `json:"rootfsImage,omitempty"`
	RootfsImageRef  string    `json:"rootfsImageRef,omitempty"`
	RootfsImageName string    `json:"rootfsImageName,omitempty"`
	Runtime         string    `json:"runtime,omitempty"`
	CreatedAt       time.Time `json:"createdTime"`
	CheckpointedAt  time.Time `json:"checkpointedTime"`
	RestoredAt      time.Time `json:"restoredTime"`
	Restored        bool      `json:"restored"`
}

// Write writes the archive of a running container, which goes on. Kind Unsupported when CRIU cannot be used, State when
// it cannot write this container, Invalid when the directory of the location is missing, Exists when a file is there. Nothing is left of a Write that fails.
func Write(ctx context.Context, tool *Tool, c *Container) (err error) {
	facts, err := tool.Now(ctx)
	if err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	upper, err := upperOf(c.Spec.Root.Path)
	if err != nil {
		return err
	}
	archive, err := newArchive(c.Location)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, archive.discard()) }()
	if err := os.RemoveAll(c.Dir); err != nil { // of an earlier attempt
		return fmt.Errorf("cannot remove the files of an earlier checkpoint: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(c.Dir)) }()
	d := &dump{dir: c.Dir, path: tool.Path, facts: facts}
	if err := d.make(); err != nil {
		return err
	}
	args, err := d.arguments(c)
	if err != nil {
		return err
	}
	c.Config.CheckpointedAt = time.Now()
	// The pid is that of the init until now: only then has CRIU the right process.
	if ended, err := sysproc.PidfdEnded(c.Pidfd); err != nil || ended {
		return errors.Join(err, fmt.Errorf("its init has ended: %w", errs.State))
	}
	if err := d.run(ctx, args, c.actions(ctx, func() error { return d.writeDifference(ctx, upper) })...); err != nil {
		return err
	}
	if err := archive.addDump(ctx, c, d); err != nil {
		return err
	}
	if err := archive.complete(); err != nil {
		return err
	}
	if c.Reached != nil {
		if err := c.Reached(ctx, engine.CheckpointWritten); err != nil {
			return err
		}
	}
	return archive.publish()
}

// actions are what is done while CRIU waits: writeDifference when all else is written.
func (c *Container) actions(ctx context.Context, writeDifference func() error) []action {
	if c.Reached == nil {
		return []action{{afterDump, writeDifference}}
	}
	return []action{
		{afterStop, func() error { return c.Reached(ctx, engine.CheckpointPaused) }},
		{afterDump, func() error {
			if err := writeDifference(); err != nil {
				return err
			}
			return c.Reached(ctx, engine.CheckpointCaptured)
		}},
	}
}

// check refuses what cannot be written.
func (c *Container) check() error {
	if c.Spec.Root == nil || c.Spec.Process == nil || c.Spec.Linux == nil {
		return errors.New("its OCI spec has no root, no process or no Linux part")
	}
	has := func(kind specs.LinuxNamespaceType) bool {
		return slices.ContainsFunc(c.Spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == kind })
	}
	switch {
	case has(specs.UserNamespace):
		return fmt.Errorf("its pod has a user namespace: %w", errs.State)
	case c.Reached != nil && !has(specs.NetworkNamespace):
		return fmt.Errorf("its pod is in the network of the host, where CRIU does not wait until the processes of other containers are stopped: %w", errs.State)
	}
	return nil
}
