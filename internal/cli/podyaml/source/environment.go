package source

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/document"
	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
	"github.com/berthrun/berth/internal/errs"
)

// Variable is one of a container's environment.
type Variable struct{ Name, Value string }

// Environment returns the variables of a container: envFrom, then env; a later variable takes the
// place of an earlier one of its name, and may refer to earlier ones by $(NAME).
func (d *Documents) Environment(c *corev1.Container, node *Node) ([]Variable, error) {
	var order []string
	values := map[string]string{}
	set := func(name, value string) {
		if _, there := values[name]; !there {
			order = append(order, name)
		}
		values[name] = value
	}
	for i := range c.EnvFrom {
		data, err := d.envSource(&c.EnvFrom[i])
		if err != nil {
			return nil, &document.FieldError{Field: fmt.Sprintf("envFrom[%d]", i), Err: err}
		}
		for _, name := range slices.Sorted(maps.Keys(data)) {
			set(c.EnvFrom[i].Prefix+name, data[name])
		}
	}
	for i := range c.Env {
		e := &c.Env[i]
		if e.Name == "" || strings.Contains(e.Name, "=") {
			return nil, &document.FieldError{Field: fmt.Sprintf("env[%d].name", i), Err: fmt.Errorf("%q is not the name of a variable", e.Name)}
		}
		if e.ValueFrom == nil {
			set(e.Name, Expand(e.Value, values))
			continue
		}
		value, present, err := d.valueFrom(e.ValueFrom, c, node)
		if err != nil {
			return nil, &document.FieldError{Field: fmt.Sprintf("env[%d].valueFrom", i), Err: fmt.Errorf("variable %s: %w", e.Name, err)}
		}
		if present {
			set(e.Name, value)
		}
	}
	env := make([]Variable, 0, len(order))
	for _, name := range order {
		env = append(env, Variable{name, values[name]})
	}
	return env, nil
}

func (d *Documents) envSource(from *corev1.EnvFromSource) (map[string]string, error) {
	switch {
	case from.ConfigMapRef != nil:
		m, err := d.configMap(from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		if m == nil {
			return nil, err
		}
		return m.Data, nil
	case from.SecretRef != nil:
		s, err := d.secret(from.SecretRef.Name, from.SecretRef.Optional)
		if s == nil {
			return nil, err
		}
		data := map[string]string{}
		for name, value := range s.Data {
			data[name] = string(value)
		}
		return data, nil
	}
	return nil, fmt.Errorf("envFrom has neither configMapRef nor secretRef")
}

// valueFrom returns present false for an optional reference to what is not there.
func (d *Documents) valueFrom(from *corev1.EnvVarSource, c *corev1.Container, node *Node) (value string, present bool, err error) {
	switch {
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		m, err := d.configMap(ref.Name, ref.Optional)
		if m == nil {
			return "", false, err
		}
		value, present = m.Data[ref.Key]
		return value, present, missingKey("ConfigMap", ref.Name, ref.Key, present || podspec.IsTrue(ref.Optional))
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		s, err := d.secret(ref.Name, ref.Optional)
		if s == nil {
			return "", false, err
		}
		data, present := s.Data[ref.Key]
		return string(data), present, missingKey("Secret", ref.Name, ref.Key, present || podspec.IsTrue(ref.Optional))
	case from.FieldRef != nil:
		value, err = d.field(from.FieldRef.FieldPath, node)
		return value, err == nil, err
	}
	if from.ResourceFieldRef != nil {
		value, err = d.resource(from.ResourceFieldRef, c, node)
		return value, err == nil, err
	}
	if from.FileKeyRef != nil {
		return d.fileKey(from.FileKeyRef, node)
	}
	return "", false, fmt.Errorf("valueFrom names no source")
}

// fileKey is a variable of a file that an earlier container wrote into an emptyDir.
func (d *Documents) fileKey(ref *corev1.FileKeySelector, node *Node) (value string, present bool, err error) {
	v := podspec.Volume(d.Pod, ref.VolumeName)
	switch {
	case v == nil || v.EmptyDir == nil:
		return "", false, fmt.Errorf("there is no emptyDir volume %q", ref.VolumeName)
	case !filepath.IsLocal(ref.Path):
		return "", false, fmt.Errorf("path %q leads out of the volume", ref.Path)
	case node.ReadVolume == nil:
		return "", false, nil // nothing has run yet
	}
	data, err := node.ReadVolume(ref.VolumeName, ref.Path)
	if errors.Is(err, errs.NotFound) && podspec.IsTrue(ref.Optional) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	value, present, err = readEnvFile(string(data), ref.Key)
	if err != nil {
		return "", false, err
	}
	return value, present, missingKey("env file", ref.Path, ref.Key, present || podspec.IsTrue(ref.Optional))
}

func missingKey(kind, name, key string, ok bool) error {
	if ok {
		return nil
	}
	return fmt.Errorf("%s %s has no key %q", kind, name, key)
}

// configMap returns nil and no error for an optional one that is not there.
func (d *Documents) configMap(name string, optional *bool) (*corev1.ConfigMap, error) {
	m := d.ConfigMaps[name]
	if m == nil && !podspec.IsTrue(optional) {
		return nil, fmt.Errorf("there is no ConfigMap %q in the file", name)
	}
	return m, nil
}

func (d *Documents) secret(name string, optional *bool) (*corev1.Secret, error) {
	s := d.Secrets[name]
	if s == nil && !podspec.IsTrue(optional) {
		return nil, fmt.Errorf("there is no Secret %q in the file", name)
	}
	return s, nil
}

// Expand puts values in the place of $(NAME). $$ is one dollar sign; a name that is
// not there stays as it is written.
func Expand(text string, values map[string]string) string {
	return ExpandFunc(text, func(name string) (string, bool) {
		value, there := values[name]
		return value, there
	})
}

// ExpandFunc is Expand for values that lookup finds.
func ExpandFunc(text string, lookup func(name string) (string, bool)) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		switch {
		case strings.HasPrefix(after, "$"):
			out.WriteString("$")
			text = after[1:]
			continue
		case strings.HasPrefix(after, "("):
			name, rest, closed := strings.Cut(after[1:], ")")
			if !closed {
				break
			}
			value, there := lookup(name)
			if !there {
				value = "$(" + name + ")"
			}
			out.WriteString(value)
			text = rest
			continue
		}
		out.WriteString("$")
		text = after
	}
}
