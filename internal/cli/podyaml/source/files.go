package source

import (
	"errors"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
)

// File is one file of a volume.
type File struct {
	Data []byte
	Mode int32
	// User owns it, if set.
	User *int64
}

// IsWritten reports whether berth writes all files of a volume, and no container changes them.
func IsWritten(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// Files returns the files of a volume that is written here, nil for others.
func (d *Documents) Files(v *corev1.Volume, node *Node) (map[string]File, error) {
	w := writer{documents: d, node: node, files: map[string]File{}}
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
	documents *Documents
	node      *Node
	mode      int32
	user      *int64
	files     map[string]File
}

func (w *writer) configMap(name string, items []corev1.KeyToPath, optional *bool) error {
	m, err := w.documents.configMap(name, optional)
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
	return w.pick(data, items, podspec.IsTrue(optional))
}

func (w *writer) secret(name string, items []corev1.KeyToPath, optional *bool) error {
	s, err := w.documents.secret(name, optional)
	if err != nil {
		return err
	}
	var data map[string][]byte
	if s != nil {
		data = s.Data
	}
	return w.pick(data, items, podspec.IsTrue(optional))
}

func (w *writer) downward(items []corev1.DownwardAPIVolumeFile) error {
	for i := range items {
		item := &items[i]
		var text string
		var err error
		switch {
		case item.FieldRef != nil:
			text, err = w.documents.metadata(item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			text, err = w.documents.resource(item.ResourceFieldRef, nil, w.node)
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
