package native

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/native/hostpath"
	"github.com/berthrun/berth/internal/engine/native/probe"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// lookUpUser resolves the container's user in the image's own files, of which a
// hostile image may make anything.
func (e *Engine) lookUpUser(ctx context.Context, spec *containerSpec, rootfs string) (ocispec.User, error) {
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

// sourcesOf looks at every mount source.
func (e *Engine) sourcesOf(ctx context.Context, mounts []*runtimeapi.Mount, userns string) (map[string]ocispec.Source, []hostpath.Missing, error) {
	sources := make(map[string]ocispec.Source, len(mounts))
	var missing []hostpath.Missing
	for i, m := range mounts {
		if m.GetImage() != nil {
			continue
		}
		from, field := m.GetHostPath(), fmt.Sprintf("config.mounts[%d].host_path", i)
		at, err := probe.Ask(ctx, e.probes, "look at the mount source "+from, func() (hostpath.Place, error) {
			return hostpath.Resolve(from)
		})
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", field, err)
		}
		if at.Path != at.Exists {
			if slices.Contains(e.rules().AbsentSources, filepath.Clean(from)) {
				return nil, nil, fmt.Errorf("%s: the mount source %s is not there, and runtime.absent_mount_sources_to_reject says that it is not to be made: %w", field, from, errs.Invalid)
			}
			missing = append(missing, hostpath.Missing{Field: field, Path: at.Path})
		}
		if len(m.GetUidMappings()) > 0 && userns != "" {
			_, err := probe.Ask(ctx, e.probes, "map the ids of the mount source "+from+" in "+userns, func() (struct{}, error) {
				return struct{}{}, sysmount.ProbeMapped(at.Exists, userns)
			})
			if err != nil {
				return nil, nil, fmt.Errorf("config.mounts[%d].uidMappings: %w", i, err)
			}
		}
		source := ocispec.Source{Path: at.Path}
		if ocispec.HasFlags(m) {
			source.Flags, err = probe.Ask(ctx, e.probes, "look at the mount of "+at.Exists, func() ([]string, error) {
				return hostpath.MountFlags(at.Exists)
			})
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", field, err)
			}
		}
		if m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
			if source.Shared, source.Slave, err = propagationOf(at.Exists); err != nil {
				return nil, nil, err
			}
		}
		if have, ok := sources[from]; ok {
			source.Shared, source.Slave = source.Shared || have.Shared, source.Slave || have.Slave
			source.Flags = slices.Concat(source.Flags, have.Flags)
		}
		sources[from] = source
	}
	return sources, missing, nil
}

// madeSources remembers, in a container's bundle, the directories that are made for its
// mounts.
func (e *Engine) madeSources(id string) hostpath.Made {
	return hostpath.Made{Probes: e.probes, File: filepath.Join(e.bundleDir(id), "made")}
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
