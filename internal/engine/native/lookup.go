package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native/probe"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// lookUpUser resolves the container's user in the image's own files, of which a
// hostile image may make anything.
func (e *Engine) lookUpUser(ctx context.Context, spec *engine.ContainerSpec, rootfs string) (ocispec.User, error) {
	type userFiles struct{ passwd, group []byte }
	files, err := probe.Ask(ctx, e.probes, "read the users of "+rootfs, func() (userFiles, error) {
		passwd, err := readUserFile(rootfs, "etc/passwd")
		if err != nil {
			return userFiles{}, err
		}
		group, err := readUserFile(rootfs, "etc/group")
		return userFiles{passwd, group}, err
	})
	if err != nil {
		return ocispec.User{}, err
	}
	return ocispec.ResolveUser(spec.Config, spec.ImageConfig, files.passwd, files.group)
}

// readUserFile returns nil when the image has no such file, or something else in
// its place. One byte more than the limit is read, so that a cut is seen.
func readUserFile(rootfs, name string) ([]byte, error) {
	data, err := sysfile.ReadInRoot(rootfs, name, ocispec.MaxUserFile+1)
	if errors.Is(err, errs.NotFound) || errors.Is(err, errs.Invalid) {
		return nil, nil
	}
	return data, err
}

// sourcesOf looks at every mount source. A directory that is missing is made, as
// hostPath volumes expect.
func (e *Engine) sourcesOf(ctx context.Context, mounts []*runtimeapi.Mount, userns string) (map[string]ocispec.Source, error) {
	sources := make(map[string]ocispec.Source, len(mounts))
	for i, m := range mounts {
		if m.GetImage() != nil {
			continue
		}
		from := m.GetHostPath()
		resolved, err := probe.Ask(ctx, e.probes, "look at the mount source "+from, func() (string, error) {
			return resolveSource(from, !slices.Contains(e.rules().AbsentSources, filepath.Clean(from)))
		})
		if err != nil {
			return nil, err
		}
		if len(m.GetUidMappings()) > 0 && userns != "" {
			_, err := probe.Ask(ctx, e.probes, "map the ids of the mount source "+from+" in "+userns, func() (struct{}, error) {
				return struct{}{}, sysfile.ProbeMapped(resolved, userns)
			})
			if err != nil {
				return nil, fmt.Errorf("mounts[%d].uidMappings: %w", i, err)
			}
		}
		source := ocispec.Source{Path: resolved}
		if m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
			if source.Shared, source.Slave, err = propagationOf(resolved); err != nil {
				return nil, err
			}
		}
		if have, ok := sources[from]; ok {
			source.Shared, source.Slave = source.Shared || have.Shared, source.Slave || have.Slave
		}
		sources[from] = source
	}
	return sources, nil
}

// resolveSource resolves the links in a path of the host. It makes a directory there if
// it may, as a hostPath volume of no type wants it.
func resolveSource(from string, may bool) (string, error) {
	resolved, err := filepath.EvalSymlinks(from)
	if errors.Is(err, fs.ErrNotExist) {
		if !may {
			return "", fmt.Errorf("the mount source %s is not there, and runtime.absent_mount_sources_to_reject says that it is not to be made: %w", from, errs.Invalid)
		}
		if err = os.MkdirAll(from, 0o755); err == nil {
			resolved, err = filepath.EvalSymlinks(from)
		}
	}
	switch {
	case err == nil:
		return resolved, nil
	case errors.Is(err, syscall.ESTALE), errors.Is(err, syscall.EIO), errors.Is(err, syscall.ENOTCONN), errors.Is(err, syscall.EHOSTDOWN):
		return "", fmt.Errorf("cannot use the mount source %s: %w: %w", from, err, errs.Unavailable)
	}
	return "", fmt.Errorf("cannot use the mount source %s: %w: %w", from, err, errs.Invalid)
}

// propagationOf tells how the mount that path is on propagates.
func propagationOf(path string) (shared, slave bool, err error) {
	infos, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return false, false, fmt.Errorf("cannot look up the mount of %s: %w", path, err)
	}
	var nearest *mountinfo.Info
	for _, info := range infos {
		// Of two at one place the later one covers.
		if nearest == nil || len(info.Mountpoint) >= len(nearest.Mountpoint) {
			nearest = info
		}
	}
	if nearest == nil {
		return false, false, nil
	}
	return strings.Contains(nearest.Optional, "shared:"), strings.Contains(nearest.Optional, "master:"), nil
}
