package podyaml

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/errs"
)

// variable is one of a container's environment.
type variable struct{ name, value string }

// environment is envFrom, then env; a later variable takes the place of an earlier
// one of its name, and may refer to earlier ones by $(NAME).
func (b *Bundle) environment(c *corev1.Container, facts *Facts) ([]variable, error) {
	var order []string
	values := map[string]string{}
	set := func(name, value string) {
		if _, there := values[name]; !there {
			order = append(order, name)
		}
		values[name] = value
	}
	for i := range c.EnvFrom {
		data, err := b.envSource(&c.EnvFrom[i])
		if err != nil {
			return nil, &fieldError{fmt.Sprintf("envFrom[%d]", i), err}
		}
		for _, name := range slices.Sorted(maps.Keys(data)) {
			set(c.EnvFrom[i].Prefix+name, data[name])
		}
	}
	for i := range c.Env {
		e := &c.Env[i]
		if e.Name == "" || strings.Contains(e.Name, "=") {
			return nil, &fieldError{fmt.Sprintf("env[%d].name", i), fmt.Errorf("%q is no name of a variable", e.Name)}
		}
		if e.ValueFrom == nil {
			set(e.Name, expand(e.Value, values))
			continue
		}
		value, present, err := b.valueFrom(e.ValueFrom, c, facts)
		if err != nil {
			return nil, &fieldError{fmt.Sprintf("env[%d].valueFrom", i), fmt.Errorf("variable %s: %w", e.Name, err)}
		}
		if present {
			set(e.Name, value)
		}
	}
	env := make([]variable, 0, len(order))
	for _, name := range order {
		env = append(env, variable{name, values[name]})
	}
	return env, nil
}

func (b *Bundle) envSource(from *corev1.EnvFromSource) (map[string]string, error) {
	switch {
	case from.ConfigMapRef != nil:
		m, err := b.configMap(from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		if m == nil {
			return nil, err
		}
		return m.Data, nil
	case from.SecretRef != nil:
		s, err := b.secret(from.SecretRef.Name, from.SecretRef.Optional)
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
func (b *Bundle) valueFrom(from *corev1.EnvVarSource, c *corev1.Container, facts *Facts) (value string, present bool, err error) {
	switch {
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		m, err := b.configMap(ref.Name, ref.Optional)
		if m == nil {
			return "", false, err
		}
		value, present = m.Data[ref.Key]
		return value, present, missingKey("ConfigMap", ref.Name, ref.Key, present || isTrue(ref.Optional))
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		s, err := b.secret(ref.Name, ref.Optional)
		if s == nil {
			return "", false, err
		}
		data, present := s.Data[ref.Key]
		return string(data), present, missingKey("Secret", ref.Name, ref.Key, present || isTrue(ref.Optional))
	case from.FieldRef != nil:
		value, err = b.field(from.FieldRef.FieldPath, facts)
		return value, err == nil, err
	}
	if from.ResourceFieldRef != nil {
		value, err = b.resource(from.ResourceFieldRef, c, facts)
		return value, err == nil, err
	}
	if from.FileKeyRef != nil {
		return b.fileKey(from.FileKeyRef, facts)
	}
	return "", false, fmt.Errorf("valueFrom names no source")
}

// fileKey is a variable of a file that an earlier container wrote into an emptyDir.
func (b *Bundle) fileKey(ref *corev1.FileKeySelector, facts *Facts) (value string, present bool, err error) {
	v := b.volume(ref.VolumeName)
	switch {
	case v == nil || v.EmptyDir == nil:
		return "", false, fmt.Errorf("there is no emptyDir volume %q", ref.VolumeName)
	case !filepath.IsLocal(ref.Path):
		return "", false, fmt.Errorf("path %q leads out of the volume", ref.Path)
	case facts.ReadVolume == nil:
		return "", false, nil // nothing has run yet
	}
	data, err := facts.ReadVolume(ref.VolumeName, ref.Path)
	if errors.Is(err, errs.NotFound) && isTrue(ref.Optional) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	value, present, err = readEnvFile(string(data), ref.Key)
	if err != nil {
		return "", false, err
	}
	return value, present, missingKey("env file", ref.Path, ref.Key, present || isTrue(ref.Optional))
}

func missingKey(kind, name, key string, ok bool) error {
	if ok {
		return nil
	}
	return fmt.Errorf("%s %s has no key %q", kind, name, key)
}

// configMap returns nil and no error for an optional one that is not there.
func (b *Bundle) configMap(name string, optional *bool) (*corev1.ConfigMap, error) {
	m := b.ConfigMaps[name]
	if m == nil && !isTrue(optional) {
		return nil, fmt.Errorf("there is no ConfigMap %q in the file", name)
	}
	return m, nil
}

func (b *Bundle) secret(name string, optional *bool) (*corev1.Secret, error) {
	s := b.Secrets[name]
	if s == nil && !isTrue(optional) {
		return nil, fmt.Errorf("there is no Secret %q in the file", name)
	}
	return s, nil
}

// expand puts values in the place of $(NAME). $$ is one dollar sign; a name that is
// not there stays as it is written.
func expand(text string, values map[string]string) string {
	return expandFunc(text, func(name string) (string, bool) {
		value, there := values[name]
		return value, there
	})
}

func expandFunc(text string, lookup func(name string) (string, bool)) string {
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
