package podyaml

import (
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
)

// Volume is what must be on disk before the pod's containers are created.
type Volume struct {
	Name string
	// Path of the volume on the host.
	Path string
	// HostPath is set for what belongs to the host: it is checked or made as its
	// type says, and never removed.
	HostPath *corev1.HostPathVolumeSource
	// Memory wants a tmpfs, of SizeLimit bytes if that is not 0.
	Memory    bool
	SizeLimit int64
	// Files are written into it.
	Files map[string]File
	// GID owns it, with the right to write, if set.
	GID *int64
}

// File is one file of a volume.
type File struct {
	Data []byte
	Mode int32
}

// Volumes lists the pod's volumes; those that are the pod's own lie below dir.
func (b *Bundle) Volumes(dir string) ([]Volume, error) {
	volumes := make([]Volume, 0, len(b.Pod.Spec.Volumes))
	for i := range b.Pod.Spec.Volumes {
		v := &b.Pod.Spec.Volumes[i]
		out := Volume{Name: v.Name, Path: volumePath(dir, v), HostPath: v.HostPath}
		if v.HostPath == nil {
			out.GID = b.Pod.Spec.SecurityContext.FSGroup
		}
		switch {
		case v.EmptyDir != nil:
			out.Memory = v.EmptyDir.Medium == corev1.StorageMediumMemory
			if v.EmptyDir.SizeLimit != nil {
				out.SizeLimit = v.EmptyDir.SizeLimit.Value()
			}
		case v.Secret != nil:
			out.Memory = true // secrets touch no disk
		}
		files, err := b.volumeFiles(v)
		if err != nil {
			return nil, fmt.Errorf("cannot make volume %s: %w", v.Name, err)
		}
		out.Files = files
		volumes = append(volumes, out)
	}
	return volumes, nil
}

func volumePath(dir string, v *corev1.Volume) string {
	if v.HostPath != nil {
		return v.HostPath.Path
	}
	return filepath.Join(dir, "volumes", v.Name)
}

func (b *Bundle) volume(name string) *corev1.Volume {
	for i := range b.Pod.Spec.Volumes {
		if b.Pod.Spec.Volumes[i].Name == name {
			return &b.Pod.Spec.Volumes[i]
		}
	}
	return nil
}

// volumeFiles returns the files of a configMap or secret volume, nil for others.
func (b *Bundle) volumeFiles(v *corev1.Volume) (map[string]File, error) {
	switch {
	case v.ConfigMap != nil:
		m, err := b.configMap(v.ConfigMap.Name, v.ConfigMap.Optional)
		if err != nil {
			return nil, err
		}
		data := map[string][]byte{}
		if m != nil {
			for name, text := range m.Data {
				data[name] = []byte(text)
			}
			for name, bytes := range m.BinaryData {
				data[name] = bytes
			}
		}
		return pickFiles(data, v.ConfigMap.Items, *v.ConfigMap.DefaultMode, isTrue(v.ConfigMap.Optional))
	case v.Secret != nil:
		s, err := b.secret(v.Secret.SecretName, v.Secret.Optional)
		if err != nil {
			return nil, err
		}
		var data map[string][]byte
		if s != nil {
			data = s.Data
		}
		return pickFiles(data, v.Secret.Items, *v.Secret.DefaultMode, isTrue(v.Secret.Optional))
	}
	return nil, nil
}

// pickFiles takes all keys, or those that items name, each to its path.
func pickFiles(data map[string][]byte, items []corev1.KeyToPath, mode int32, optional bool) (map[string]File, error) {
	files := map[string]File{}
	if len(items) == 0 {
		for name, content := range data {
			if !filepath.IsLocal(name) {
				return nil, fmt.Errorf("key %q is no name of a file", name)
			}
			files[name] = File{content, mode}
		}
		return files, nil
	}
	for _, item := range items {
		content, there := data[item.Key]
		if !there {
			if optional {
				continue
			}
			return nil, fmt.Errorf("there is no key %q", item.Key)
		}
		if !filepath.IsLocal(item.Path) {
			return nil, fmt.Errorf("path %q leads out of the volume", item.Path)
		}
		own := mode
		if item.Mode != nil {
			own = *item.Mode
		}
		files[item.Path] = File{content, own}
	}
	return files, nil
}
