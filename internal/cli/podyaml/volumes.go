package podyaml

import (
	"errors"
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
	// Claim says that the volume outlives the pod.
	Claim bool
	// Memory wants a tmpfs, of SizeLimit bytes if that is not 0. HugePages wants a
	// hugetlbfs instead, with pages of so many bytes.
	Memory    bool
	HugePages int64
	// SizeLimit of a volume that is no tmpfs is kept by whoever keeps the pod.
	SizeLimit int64
	// Mode of the volume's directory, nil for the usual one.
	Mode *int32
	// Files are written into it.
	Files map[string]File
	// GID owns it, with the right to write, if set; with OnlyOnMismatch what is in it
	// is left alone where the directory itself is right.
	GID            *int64
	OnlyOnMismatch bool
}

// File is one file of a volume.
type File struct {
	Data []byte
	Mode int32
	// User owns it, if set.
	User *int64
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
		out := Volume{Name: v.Name, Path: b.volumePath(v, facts), HostPath: v.HostPath}
		if v.HostPath == nil {
			out.GID = b.Pod.Spec.SecurityContext.FSGroup
		}
		switch {
		case v.EmptyDir != nil:
			out.Memory = v.EmptyDir.Medium == corev1.StorageMediumMemory
			out.HugePages, _ = b.pageSize(v)
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
		files, err := b.volumeFiles(v, facts)
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

func (b *Bundle) volume(name string) *corev1.Volume {
	for i := range b.Pod.Spec.Volumes {
		if b.Pod.Spec.Volumes[i].Name == name {
			return &b.Pod.Spec.Volumes[i]
		}
	}
	return nil
}

// isWritten tells of a volume whose files are all ours: no container changes them.
func isWritten(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// volumeFiles returns the files of a volume that is written here, nil for others.
func (b *Bundle) volumeFiles(v *corev1.Volume, facts *Facts) (map[string]File, error) {
	w := writer{bundle: b, facts: facts, files: map[string]File{}}
	var err error
	switch {
	case v.ConfigMap != nil:
		w.mode, w.user = *v.ConfigMap.DefaultMode, v.ConfigMap.DefaultUser
		err = w.configMap(v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.Optional)
	case v.Secret != nil:
		w.mode, w.user = *v.Secret.DefaultMode, v.Secret.DefaultUser
		err = w.secret(v.Secret.SecretName, v.Secret.Items, v.Secret.Optional)
	case v.DownwardAPI != nil:
		w.mode, w.user = *v.DownwardAPI.DefaultMode, v.DownwardAPI.DefaultUser
		err = w.downward(v.DownwardAPI.Items)
	case v.Projected != nil:
		w.mode, w.user = *v.Projected.DefaultMode, v.Projected.DefaultUser
		err = w.projected(v.Projected.Sources)
	default:
		return nil, nil
	}
	return w.files, err
}

// writer gathers the files of one volume.
type writer struct {
	bundle *Bundle
	facts  *Facts
	mode   int32
	user   *int64
	files  map[string]File
}

func (w *writer) configMap(name string, items []corev1.KeyToPath, optional *bool) error {
	m, err := w.bundle.configMap(name, optional)
	if err != nil {
		return err
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
	return w.pick(data, items, isTrue(optional))
}

func (w *writer) secret(name string, items []corev1.KeyToPath, optional *bool) error {
	s, err := w.bundle.secret(name, optional)
	if err != nil {
		return err
	}
	var data map[string][]byte
	if s != nil {
		data = s.Data
	}
	return w.pick(data, items, isTrue(optional))
}

func (w *writer) downward(items []corev1.DownwardAPIVolumeFile) error {
	for i := range items {
		item := &items[i]
		var text string
		var err error
		switch {
		case item.FieldRef != nil:
			text, err = w.bundle.metadata(item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			text, err = w.bundle.resource(item.ResourceFieldRef, nil, w.facts)
		default:
			err = errors.New("it has neither fieldRef nor resourceFieldRef")
		}
		if err == nil {
			err = w.put(item.Path, []byte(text), item.Mode, item.User)
		}
		if err != nil {
			return fmt.Errorf("file %q: %w", item.Path, err)
		}
	}
	return nil
}

func (w *writer) projected(sources []corev1.VolumeProjection) error {
	for i := range sources {
		var err error
		switch s := &sources[i]; {
		case s.ConfigMap != nil:
			err = w.configMap(s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional)
		case s.Secret != nil:
			err = w.secret(s.Secret.Name, s.Secret.Items, s.Secret.Optional)
		case s.DownwardAPI != nil:
			err = w.downward(s.DownwardAPI.Items)
		default:
			err = errors.New("it names no source")
		}
		if err != nil {
			return fmt.Errorf("source %d: %w", i, err)
		}
	}
	return nil
}

// pick takes all keys, or those that items name, each to its path.
func (w *writer) pick(data map[string][]byte, items []corev1.KeyToPath, optional bool) error {
	if len(items) == 0 {
		for name, content := range data {
			if err := w.put(name, content, nil, nil); err != nil {
				return err
			}
		}
		return nil
	}
	for _, item := range items {
		content, there := data[item.Key]
		if !there {
			if optional {
				continue
			}
			return fmt.Errorf("there is no key %q", item.Key)
		}
		if err := w.put(item.Path, content, item.Mode, item.User); err != nil {
			return err
		}
	}
	return nil
}

// put adds a file; a later one takes the place of an earlier one of its name.
func (w *writer) put(path string, content []byte, mode *int32, user *int64) error {
	if !filepath.IsLocal(path) || filepath.Clean(path) == "." {
		return fmt.Errorf("path %q leads out of the volume", path)
	}
	f := File{Data: content, Mode: w.mode, User: w.user}
	if mode != nil {
		f.Mode = *mode
	}
	if user != nil {
		f.User = user
	}
	w.files[filepath.Clean(path)] = f
	return nil
}
