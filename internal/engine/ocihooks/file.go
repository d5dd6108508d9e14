package ocihooks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// version is that of the format.
const version = "1.0.0"

// stageOrder returns the names of the stages in their order.
func stageOrder() []string {
	return []string{"prestart", "createRuntime", "createContainer", startContainer, "poststart", "poststop"}
}

// startContainer is the one stage whose program is found in the container.
const startContainer = "startContainer"

// stages returns the lists of hooks of a spec by the names that files use.
func stages(hooks *specs.Hooks) map[string]*[]specs.Hook {
	return map[string]*[]specs.Hook{
		"prestart":        &hooks.Prestart, //nolint:staticcheck // old, and part of the format
		"createRuntime":   &hooks.CreateRuntime,
		"createContainer": &hooks.CreateContainer,
		startContainer:    &hooks.StartContainer,
		"poststart":       &hooks.Poststart,
		"poststop":        &hooks.Poststop,
	}
}

// definition is the content of a file.
type definition struct {
	// file is its path.
	file   string
	hook   specs.Hook
	stages []string
	when   conditions
}

// conditions are those under which containers get a hook: all that are there must hold.
type conditions struct {
	always, hasBindMounts *bool
	annotations           []annotation
	commands              []*regexp.Regexp
}

// annotation is a condition that an annotation of the container satisfies.
type annotation struct{ key, value *regexp.Regexp }

// fieldError is a fault of one field of a file. field is its path.
type fieldError struct {
	field string
	err   error
}

func (f *fieldError) Error() string { return f.field + ": " + f.err.Error() }

func (f *fieldError) Unwrap() error { return f.err }

func fault(field, format string, args ...any) error {
	return &fieldError{field, fmt.Errorf(format, args...)}
}

// written is a file as it is written. The conditions are read apart: one that berth does not know must not be
// ignored.
type written struct {
	Version *string         `json:"version"`
	Hook    *specs.Hook     `json:"hook"`
	When    json.RawMessage `json:"when"`
	Stages  *[]string       `json:"stages"`
}

type writtenConditions struct {
	Always        *bool             `json:"always"`
	Annotations   map[string]string `json:"annotations"`
	Commands      []string          `json:"commands"`
	HasBindMounts *bool             `json:"hasBindMounts"`
}

// parse reads a file. The error has every fault, as a *fieldError where a field is at fault.
func parse(data []byte) (*definition, error) {
	var w written
	if err := json.Unmarshal(data, &w); err != nil {
		return nil, jsonFault("", err)
	}
	switch {
	case w.Version == nil:
		return nil, fault("version", "is missing; want %q", version)
	case *w.Version != version:
		return nil, fault("version", "%q: want %q", *w.Version, version)
	}
	d := &definition{}
	var faults []error
	if w.Hook == nil {
		faults = append(faults, fault("hook", "is missing"))
	} else {
		d.hook = *w.Hook
		faults = append(faults, checkHook(w.Hook))
	}
	var err error
	d.when, err = parseConditions(w.When)
	faults = append(faults, err)
	if w.Stages == nil {
		faults = append(faults, fault("stages", "is missing"))
	} else {
		d.stages = *w.Stages
		faults = append(faults, checkStages(d.stages))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return d, nil
}

func checkHook(h *specs.Hook) error {
	var faults []error
	switch {
	case h.Path == "":
		faults = append(faults, fault("hook.path", "is missing"))
	case !filepath.IsAbs(h.Path):
		faults = append(faults, fault("hook.path", "%q is not an absolute path", h.Path))
	}
	for field, texts := range map[string][]string{"hook.path": {h.Path}, "hook.args": h.Args, "hook.env": h.Env} {
		if slices.ContainsFunc(texts, func(text string) bool { return strings.ContainsRune(text, 0) }) {
			faults = append(faults, fault(field, "has a null character"))
		}
	}
	for i, variable := range h.Env {
		if strings.Index(variable, "=") < 1 {
			faults = append(faults, fault(fmt.Sprintf("hook.env[%d]", i), "%q: want NAME=VALUE", variable))
		}
	}
	if h.Timeout != nil && *h.Timeout <= 0 {
		faults = append(faults, fault("hook.timeout", "%d: want a number of seconds above 0", *h.Timeout))
	}
	return errors.Join(faults...)
}

func checkStages(list []string) error {
	known := stages(&specs.Hooks{})
	var faults []error
	for i, stage := range list {
		if known[stage] == nil {
			faults = append(faults, fault(fmt.Sprintf("stages[%d]", i), "%q: want one of %s", stage, strings.Join(slices.Sorted(maps.Keys(known)), ", ")))
		}
	}
	return errors.Join(faults...)
}

func parseConditions(data []byte) (c conditions, err error) {
	if len(data) == 0 {
		return c, fault("when", "is missing")
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var w writtenConditions
	if err := decoder.Decode(&w); err != nil {
		return c, jsonFault("when", err)
	}
	if w.Always == nil && w.HasBindMounts == nil && len(w.Annotations) == 0 && len(w.Commands) == 0 {
		return c, fault("when", "has no condition; want always, annotations, commands or hasBindMounts")
	}
	c.always, c.hasBindMounts = w.Always, w.HasBindMounts
	var faults []error
	compile := func(field, pattern string) *regexp.Regexp {
		compiled, err := regexp.Compile(pattern)
		if err != nil {
			faults = append(faults, fault(field, "%w", err))
		}
		return compiled
	}
	for _, key := range slices.Sorted(maps.Keys(w.Annotations)) {
		field := fmt.Sprintf("when.annotations[%q]", key)
		c.annotations = append(c.annotations, annotation{compile(field, key), compile(field, w.Annotations[key])})
	}
	for i, command := range w.Commands {
		c.commands = append(c.commands, compile(fmt.Sprintf("when.commands[%d]", i), command))
	}
	return c, errors.Join(faults...)
}

// jsonFault returns the error of a decoder with the path of the field, where the decoder knows it. below is the
// path of what was decoded.
func jsonFault(below string, err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		if field := strings.Trim(below+"."+wrong.Field, "."); field != "" {
			return fault(field, "%s instead of %s", wrong.Value, wrong.Type)
		}
	}
	if below != "" {
		return &fieldError{below, err}
	}
	return err
}

// match reports whether a container gets the hook.
func (c *conditions) match(container *Container) bool {
	if c.always != nil && !*c.always {
		return false
	}
	if c.hasBindMounts != nil && (!*c.hasBindMounts || !container.HasBindMounts) {
		return false
	}
	for _, wanted := range c.annotations {
		found := false
		for key, value := range container.Annotations {
			found = found || wanted.key.MatchString(key) && wanted.value.MatchString(value)
		}
		if !found {
			return false
		}
	}
	return len(c.commands) == 0 ||
		slices.ContainsFunc(c.commands, func(command *regexp.Regexp) bool { return command.MatchString(container.Command) })
}
