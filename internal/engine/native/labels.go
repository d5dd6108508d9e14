package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/ocispec"
)

// labelsFile is the file in a sandbox's directory that holds its labels: its
// categories are reserved as long as it is there.
const labelsFile = "selinux.json"

// labelSandbox chooses the sandbox's labels, and records them before they are used.
func (e *Engine) labelSandbox(spec *engine.SandboxSpec, paths sandboxPaths, sb *sandbox) error {
	labels, err := e.selinux.Sandbox(spec.ID, spec.Config.GetLinux().GetSecurityContext().GetSelinuxOptions())
	if err != nil || labels == (selinux.Labels{}) {
		return err
	}
	sb.ProcessLabel, sb.MountLabel = labels.Process, labels.Mount
	data, err := json.Marshal(labels)
	if err != nil {
		return fmt.Errorf("cannot record the sandbox's labels: %w", err)
	}
	if err := os.WriteFile(paths.labels, data, 0o600); err != nil {
		return fmt.Errorf("cannot record the sandbox's labels: %w", err)
	}
	return nil
}

// labelFiles labels what all containers of the sandbox mount.
func (e *Engine) labelFiles(dir string, paths sandboxPaths, label string) error {
	if label == "" {
		return nil
	}
	for _, path := range []string{
		filepath.Join(dir, "hosts"), filepath.Join(dir, "hostname"), filepath.Join(dir, "resolv.conf"), paths.shm,
	} {
		err := e.relabel.Set(path, label)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // without an IPC namespace there is no shm
			return fmt.Errorf("cannot label the sandbox's files: %w", err)
		}
	}
	return nil
}

// shareFiles lets a container that has a label of its own use what all containers of its
// sandbox mount. The files get a label without categories: with the container's label the
// others could not use them.
func (e *Engine) shareFiles(spec *containerSpec, labels selinux.Labels) error {
	if labels.Unconfined() || labels.Mount == spec.Sandbox.MountLabel {
		return nil
	}
	return e.labelFiles(spec.SandboxSpec.Dir, e.sandboxPaths(spec.SandboxSpec.ID), selinux.Shared(spec.Sandbox.MountLabel))
}

// adoptLabels reserves the categories of the sandboxes that are there.
func (e *Engine) adoptLabels() error {
	if !e.selinux.Enabled() {
		return nil // nothing is labelled until the next start
	}
	files, err := e.filesOfSandboxes(labelsFile)
	if err != nil {
		return err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot read a sandbox's labels: %w", err)
		}
		var labels selinux.Labels
		if json.Unmarshal(data, &labels) != nil {
			continue // the daemon was killed while it wrote: no sandbox uses them yet
		}
		if err := e.selinux.Adopt(filepath.Base(filepath.Dir(file)), labels); err != nil {
			return fmt.Errorf("cannot reserve a sandbox's labels: %w", err)
		}
	}
	return nil
}

// labelsOf are a container's labels.
func (e *Engine) labelsOf(spec *containerSpec) (selinux.Labels, error) {
	sandbox := selinux.Labels{Process: spec.Sandbox.ProcessLabel, Mount: spec.Sandbox.MountLabel}
	return e.selinux.Container(sandbox, spec.Config.GetLinux().GetSecurityContext().GetSelinuxOptions(), isPrivileged(spec.Config))
}

// relabelVolumes labels the mounts that ask for it, in a stage of its own: it lasts
// as long as there are files. An image's files have the label of their own mount.
func (e *Engine) relabelVolumes(ctx context.Context, spec *containerSpec, sources map[string]ocispec.Source, labels selinux.Labels) error {
	if labels.Mount == "" || labels.Unconfined() {
		return nil
	}
	label := labels.Mount
	if e.rules().SharedVolumes {
		label = selinux.Shared(label)
	}
	stage, done := stageOf(spec), false
	for i, m := range spec.Config.GetMounts() {
		if !m.GetSelinuxRelabel() || m.GetHostPath() == "" {
			continue
		}
		done = true
		path := sources[m.GetHostPath()].Path
		stage("relabel volumes", path)
		err := e.relabel.Relabel(ctx, path, label, func(files int64) {
			stage("relabel volumes", fmt.Sprintf("%s, %d files so far", path, files))
		})
		if err != nil {
			return fmt.Errorf("config.mounts[%d].selinux_relabel: %w", i, err)
		}
	}
	if done {
		stage(stageCreate, stageEngine)
	}
	return nil
}
