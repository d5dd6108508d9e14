package hostpath

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// Finder looks at the sources of mounts.
type Finder struct {
	Probes *probe.Pool
	// Claims are those of the engine.
	Claims *Claims
	// Rejected are paths that are not made where they are missing.
	Rejected []string
}

// Find looks at every mount source. It returns the sources by host path, and those that are
// missing. userns is the pod's user namespace, "" for the host's. Kind Invalid names the
// field of a source that cannot be used.
func (f Finder) Find(ctx context.Context, mounts []*runtimeapi.Mount, userns string) (map[string]ocispec.Source, []Missing, error) {
	sources := make(map[string]ocispec.Source, len(mounts))
	var missing []Missing
	for i, m := range mounts {
		if m.GetImage() != nil {
			continue
		}
		from, field := m.GetHostPath(), fmt.Sprintf("config.mounts[%d].host_path", i)
		at, err := probe.Ask(ctx, f.Probes, "look at the mount source "+from, func() (Place, error) {
			return Resolve(from)
		})
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", field, err)
		}
		f.Claims.use("", at.Path)
		if at.Path != at.Exists {
			if slices.Contains(f.Rejected, filepath.Clean(from)) {
				return nil, nil, fmt.Errorf("%s: the mount source %s is not there, and runtime.absent_mount_sources_to_reject says that it is not to be made: %w", field, from, errs.Invalid)
			}
			missing = append(missing, Missing{Field: field, Path: at.Path})
		}
		if len(m.GetUidMappings()) > 0 && userns != "" {
			_, err := probe.Ask(ctx, f.Probes, "map the ids of the mount source "+from+" in "+userns, func() (struct{}, error) {
				return struct{}{}, sysmount.ProbeMapped(at.Exists, userns)
			})
			if err != nil {
				return nil, nil, fmt.Errorf("config.mounts[%d].uidMappings: %w", i, err)
			}
		}
		source := ocispec.Source{Path: at.Path}
		if ocispec.HasFlags(m) {
			source.Flags, err = probe.Ask(ctx, f.Probes, "look at the mount of "+at.Exists, func() ([]string, error) {
				return MountFlags(at.Exists)
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

// propagationOf returns the propagation of the mount that path is on.
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
