// Package podcheckpoint has the directory of a pod's checkpoint: an archive for each container, and a file that describes
// them. It also has the barrier by which the containers are written at one moment.
//
// Nobody trusts a directory that is restored. This package reads the description alone, and only compares it with the
// request. It never opens a name that the description chooses outside of the directory.
package podcheckpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const (
	// fileName is that of the description. It is written last.
	fileName = "pod.json"
	// version is that of the layout of a directory.
	version = 1
	// maxDescription bounds the description, as CRI bounds a request.
	maxDescription = 16 << 20
)

// Pod is the description of a checkpoint.
type Pod struct {
	Version int `json:"version"`
	// Sandbox, Namespace, Name, UID and Handler are those of the pod that was written, for people.
	Sandbox   string `json:"sandbox"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Handler   string `json:"handler,omitempty"`
	// CheckpointedAt is when the processes were written.
	CheckpointedAt time.Time   `json:"checkpointedTime"`
	Containers     []Container `json:"containers"`
}

// Container describes one container, and the process that its request started.
type Container struct {
	Name string `json:"name"`
	ID   string `json:"id"`
	// File is the name of its archive.
	File string `json:"file"`
	// Process is what the request of a restore has to repeat.
	Process Process `json:"process"`
}

// Process is the part of a container's request that the processes in an archive have already, and a restore cannot change.
// The image is in the archive.
type Process struct {
	Command    []string          `json:"command,omitempty"`
	Args       []string          `json:"args,omitempty"`
	WorkingDir string            `json:"workingDir,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	// User is nil where the request has none.
	User               *int64  `json:"user,omitempty"`
	Group              *int64  `json:"group,omitempty"`
	Username           string  `json:"username,omitempty"`
	SupplementalGroups []int64 `json:"supplementalGroups,omitempty"`
}

// FileOf is the name of the archive of the container with an index. It has nothing of the container's name.
func FileOf(index int) string { return fmt.Sprintf("%d.tar", index) }

// byIndex matches the names that FileOf returns.
var byIndex = regexp.MustCompile(`^[0-9]{1,9}\.tar$`)

// ProcessOf is the part of a request that a restore has to repeat.
func ProcessOf(config *runtimeapi.ContainerConfig) Process {
	security := config.GetLinux().GetSecurityContext()
	p := Process{
		Command: config.GetCommand(), Args: config.GetArgs(), WorkingDir: config.GetWorkingDir(), Env: map[string]string{},
		Username: security.GetRunAsUsername(), SupplementalGroups: slices.Sorted(slices.Values(security.GetSupplementalGroups())),
	}
	for _, kv := range config.GetEnvs() {
		p.Env[kv.GetKey()] = string(kv.GetValue())
	}
	if user := security.GetRunAsUser(); user != nil {
		p.User = &user.Value
	}
	if group := security.GetRunAsGroup(); group != nil {
		p.Group = &group.Value
	}
	return p
}

// CheckEmpty refuses a directory that cannot take a checkpoint. Kind Invalid when it is missing, no directory, a link, or
// not empty.
func CheckEmpty(dir string) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	defer f.Close()
	names, err := f.Readdirnames(1)
	switch {
	case len(names) > 0:
		return fmt.Errorf("%s is not empty (%.100q): %w", dir, names[0], errs.Invalid)
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// Write writes the description into the directory, which has the archives. It replaces no file.
func (p *Pod) Write(dir string) error {
	p.Version = version
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, fileName)
	if err = sysfile.WriteSynced(path, append(data, '\n')); err == nil {
		return nil
	}
	err = fmt.Errorf("cannot write the description of the checkpoint: %w", errs.OfDisk(err))
	if !errors.Is(err, fs.ErrExist) { // else it is not ours
		err = errors.Join(err, errs.IgnoreNotExist(os.Remove(path)))
	}
	return err
}

// Read reads the description in a directory that nobody trusts, and changes nothing there. Kind NotFound when there is
// none, Invalid when it is at fault.
func Read(dir string) (*Pod, error) {
	top, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", err, errs.NotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	defer top.Close()
	f, err := sysfile.OpenBeneath(top, fileName, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no %s: it is not the checkpoint of a pod, or it was not completed: %w", dir, fileName, errs.NotFound)
	}
	if err != nil {
		return nil, bad("%v", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, bad("it is not a regular file"))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxDescription+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxDescription {
		return nil, bad("it has more than %d bytes", maxDescription)
	}
	return decode(data)
}

// bad is the error of a description.
func bad(format string, args ...any) error {
	return fmt.Errorf("%s of the checkpoint: %s: %w", fileName, fmt.Sprintf(format, args...), errs.Invalid)
}

// decode decodes a description. What it returns has one archive for each name.
func decode(data []byte) (*Pod, error) {
	var p Pod
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, bad("%v", err)
	}
	if p.Version != version {
		return nil, bad("version %d: this berth reads version %d", p.Version, version)
	}
	names, files := map[string]bool{}, map[string]bool{}
	for _, c := range p.Containers {
		switch {
		case c.Name == "" || names[c.Name]:
			return nil, bad("container %.100q is there twice, or has no name", c.Name)
		case !byIndex.MatchString(c.File) || files[c.File]:
			return nil, bad("container %.100q: %.100q is not the name of an archive of its own", c.Name, c.File)
		}
		names[c.Name], files[c.File] = true, true
	}
	return &p, nil
}

// Match compares the description with the containers of a request, whose names are unique, and returns the file of each. Kind
// Invalid for a container that only one of them has, and for a process that differs; the error names the field.
func (p *Pod) Match(configs []*runtimeapi.ContainerConfig) (files []string, err error) {
	written := map[string]*Container{}
	for i := range p.Containers {
		written[p.Containers[i].Name] = &p.Containers[i]
	}
	for i, config := range configs {
		name := config.GetMetadata().GetName()
		c := written[name]
		if c == nil {
			return nil, fmt.Errorf("container_configs[%d].metadata.name: the checkpoint has no container %q: %w", i, name, errs.Invalid)
		}
		requested := ProcessOf(config)
		if field, differs := c.Process.difference(&requested); differs {
			return nil, fmt.Errorf("container_configs[%d].%s: container %q was written with another value, and a restore cannot change it: %w", i, field, name, errs.Invalid)
		}
		files = append(files, c.File)
		delete(written, name)
	}
	if len(written) > 0 {
		return nil, fmt.Errorf("container_configs: the checkpoint also has container %.100q: %w", slices.Sorted(maps.Keys(written))[0], errs.Invalid)
	}
	return files, nil
}

// difference names the first field in which two processes differ. It returns no value: an environment has secrets.
func (p *Process) difference(other *Process) (field string, differs bool) {
	const security = "linux.security_context."
	same := func(a, b *int64) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }
	switch {
	case !slices.Equal(p.Command, other.Command):
		return "command", true
	case !slices.Equal(p.Args, other.Args):
		return "args", true
	case p.WorkingDir != other.WorkingDir:
		return "working_dir", true
	case !same(p.User, other.User):
		return security + "run_as_user", true
	case !same(p.Group, other.Group):
		return security + "run_as_group", true
	case p.Username != other.Username:
		return security + "run_as_username", true
	case !slices.Equal(p.SupplementalGroups, other.SupplementalGroups):
		return security + "supplemental_groups", true
	}
	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		if value, has := other.Env[name]; !has || value != p.Env[name] {
			return fmt.Sprintf("envs[%.100q]", name), true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(other.Env)) {
		if _, has := p.Env[name]; !has {
			return fmt.Sprintf("envs[%.100q]", name), true
		}
	}
	return "", false
}
