package podyaml

import (
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/resources"
	"github.com/berthrun/berth/internal/cli/podyaml/source"
)

// Volume is what must be on disk before the pod's containers are created.
type Volume struct {
	Name string
	// Path of the volume on the host.
	Path string
	// HostPath is set for what belongs to the host, also through a claim: it is checked or
	// made as its type says, and never changed or removed.
	HostPath *corev1.HostPathVolumeSource
	// Claim says that the volume outlives the pod.
	Claim bool
	// Memory wants a tmpfs, of SizeLimit bytes if that is not 0. HugePages wants a
	// hugetlbfs instead, with pages of so many bytes.
	Memory    bool
	HugePages int64
	// SizeLimit in bytes. podrun enforces that of a volume that is not a tmpfs.
	SizeLimit int64
	// Mode of the volume's directory, nil for the usual one.
	Mode *int32
	// Files are written into it.
	Files map[string]source.File
	// GID owns it, with the right to write, if set; with OnlyOnMismatch what is in it
	// is left alone where the directory itself is right.
	GID            *int64
	OnlyOnMismatch bool
}

// Volumes lists the pod's volumes that are directories of this host; those that are the
// pod's own lie below facts.Dir.
func (b *Bundle) Volumes(facts *Facts) ([]Volume, error) {
	volumes := make([]Volume, 0, len(b.Pod.Spec.Volumes))
	for i := range b.Pod.Spec.Volumes {
		v := &b.Pod.Spec.Volumes[i]
		if v.Image != nil {
			continue // the runtime mounts it
		}
		out := Volume{Name: v.Name, Path: b.volumePath(v, facts), HostPath: b.hostPath(v)}
		if out.HostPath == nil && !isReadOnlyClaim(v) {
			out.GID = b.Pod.Spec.SecurityContext.FSGroup
		}
		switch {
		case v.EmptyDir != nil:
			out.Memory = v.EmptyDir.Medium == corev1.StorageMediumMemory
			out.HugePages, _ = resources.PageSize(b.Pod, v)
			out.Mode = v.EmptyDir.Mode
			if v.EmptyDir.SizeLimit != nil {
				out.SizeLimit = v.EmptyDir.SizeLimit.Value()
			}
		case v.PersistentVolumeClaim != nil:
			out.Claim = true
			policy := b.Pod.Spec.SecurityContext.FSGroupChangePolicy
			out.OnlyOnMismatch = policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch
		case v.Secret != nil, v.DownwardAPI != nil, v.Projected != nil:
			out.Memory = true // secrets touch no disk
		}
		files, err := b.Files(v, facts.node())
		if err != nil {
			return nil, fmt.Errorf("cannot make volume %s: %w", v.Name, err)
		}
		out.Files = files
		volumes = append(volumes, out)
	}
	return volumes, nil
}

func (b *Bundle) volumePath(v *corev1.Volume, facts *Facts) string {
	switch {
	case v.HostPath != nil:
		return v.HostPath.Path
	case v.PersistentVolumeClaim != nil:
		return b.claimPath(v.PersistentVolumeClaim.ClaimName, facts)
	}
	return filepath.Join(facts.Dir, "volumes", v.Name)
}
