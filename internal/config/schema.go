// Package config holds one struct per configuration of berth. The struct's tags (toml key, help,
// oneof, flag, reload, secret, engine) are the only place where a key is described: loading, flags, the
// sample file and the reference page are generated from them.
package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/berthrun/berth/internal/errs"
)

// Field is one key of a configuration.
type Field struct {
	// Key is dotted: "network.mode".
	Key string
	// Help is one or two sentences for people.
	Help string
	// OneOf are the accepted values, nil when they are not a fixed set.
	OneOf []string
	// Flag is the command-line flag's name, "" for none.
	Flag string
	// Reload is true when a running daemon takes a new value on SIGHUP.
	Reload bool
	// SecretValues is true for a list of NAME=VALUE whose values may be secrets.
	SecretValues bool
	// Engine is the only engine that uses the key, "" if all do.
	Engine string

	value reflect.Value
}

// Section is a table of a configuration and its help.
type Section struct {
	Name, Help string
	Fields     []Field
}

// Sections lists the tables of a configuration (a pointer to a struct) in their
// order, the nameless top one first.
func Sections(cfg any) []Section {
	top := Section{}
	var rest []Section
	value := reflect.ValueOf(cfg).Elem()
	for i := range value.NumField() {
		tag := value.Type().Field(i).Tag
		if value.Field(i).Kind() == reflect.Map {
			continue // its keys are not known: see Fields and handlers.go
		}
		if value.Field(i).Kind() != reflect.Struct {
			top.Fields = append(top.Fields, newField("", tag, value.Field(i)))
			continue
		}
		section := Section{Name: tag.Get("toml"), Help: tag.Get("help")}
		for j := range value.Field(i).NumField() {
			inner := value.Field(i).Type().Field(j)
			section.Fields = append(section.Fields, newField(section.Name+".", inner.Tag, value.Field(i).Field(j)))
		}
		rest = append(rest, section)
	}
	return append([]Section{top}, rest...)
}

// Fields lists every key of a configuration. A table of named tables is one of them.
func Fields(cfg any) []Field {
	var fields []Field
	for _, section := range Sections(cfg) {
		fields = append(fields, section.Fields...)
	}
	value := reflect.ValueOf(cfg).Elem()
	for i := range value.NumField() {
		if value.Field(i).Kind() == reflect.Map {
			fields = append(fields, newField("", value.Type().Field(i).Tag, value.Field(i)))
		}
	}
	return fields
}

func newField(prefix string, tag reflect.StructTag, value reflect.Value) Field {
	return Field{
		Key:    prefix + tag.Get("toml"),
		Help:   tag.Get("help"),
		OneOf:  strings.Fields(tag.Get("oneof")),
		Flag:   tag.Get("flag"),
		Reload: tag.Get("reload") == "yes",
		value:  value,

		SecretValues: tag.Get("secret") == "values",
		Engine:       tag.Get("engine"),
	}
}

// Name is the last part of the key.
func (f Field) Name() string { return f.Key[strings.LastIndex(f.Key, ".")+1:] }

// TOML is the field's value as it stands in a file.
func (f Field) TOML() string {
	text, err := toml.Marshal(map[string]any{"v": f.value.Interface()})
	if err != nil {
		// Every type of field has a TOML form; a test marshals them all.
		panic(fmt.Sprintf("config key %s has no TOML form: %v", f.Key, err))
	}
	return strings.TrimPrefix(strings.TrimSpace(string(text)), "v = ")
}

// String is the field's value as it stands on a command line.
func (f Field) String() string { return fmt.Sprint(f.value.Interface()) }

// checkOneOf returns what is wrong with a value, or an element of a list, of a fixed set,
// or "".
func (f Field) checkOneOf() string {
	if len(f.OneOf) == 0 {
		return ""
	}
	values := []string{f.value.String()}
	if list, ok := f.value.Interface().([]string); ok {
		values = list
	}
	for _, value := range values {
		if !slices.Contains(f.OneOf, value) {
			return fmt.Sprintf("%q: want one of %s", value, strings.Join(f.OneOf, ", "))
		}
	}
	return ""
}

// Changed lists the keys in which two configurations of one type differ, apart:
// those that a running daemon can take over, and those that need a restart.
func Changed(old, new any) (reloadable, restart []string) {
	after := Fields(new)
	for i, before := range Fields(old) {
		if reflect.DeepEqual(before.value.Interface(), after[i].value.Interface()) {
			continue
		}
		if before.Reload {
			reloadable = append(reloadable, before.Key)
		} else {
			restart = append(restart, before.Key)
		}
	}
	return reloadable, restart
}

// WithoutEffect lists the keys that somebody has set to another value than the default, and that the
// configured engine does not use.
func (d *Daemon) WithoutEffect() []string {
	var keys []string
	defaults := Fields(DefaultDaemon())
	for i, field := range Fields(d) {
		if field.Engine != "" && field.Engine != d.Engine && !reflect.DeepEqual(field.value.Interface(), defaults[i].value.Interface()) {
			keys = append(keys, field.Key)
		}
	}
	return keys
}

// Reloaded is the current configuration with what a running daemon can take over of the
// next one.
func Reloaded(current, next *Daemon) *Daemon {
	merged := *current
	from := Fields(next)
	for i, to := range Fields(&merged) {
		if to.Reload {
			to.value.Set(from[i].value)
		}
	}
	return &merged
}

// ReadShown reads the configuration that a daemon shows in its verbose Status, its key "config". A key that an older daemon
// does not have gets its default. The error is of kind Unsupported if the text is not a configuration.
func ReadShown(text string) (*Daemon, error) {
	cfg := DefaultDaemon()
	var keys map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &keys); err != nil || len(keys) == 0 {
		return nil, fmt.Errorf("the runtime does not show the configuration of a berth: %w", errs.Unsupported)
	}
	if err := json.Unmarshal([]byte(text), cfg); err != nil {
		return nil, fmt.Errorf("cannot read the configuration that the daemon shows: %w: %w", err, errs.Unsupported)
	}
	return cfg, nil
}

// Hidden replaces the value of a secret. No configuration may have it as a value.
const Hidden = "[hidden]"

// WithoutSecrets is a copy of a configuration that may be shown.
func WithoutSecrets(cfg *Daemon) *Daemon {
	shown := *cfg
	for _, field := range Fields(&shown) {
		entries, ok := field.value.Interface().([]string)
		if !field.SecretValues || !ok {
			continue
		}
		hidden := make([]string, len(entries))
		for i, entry := range entries {
			name, _, _ := strings.Cut(entry, "=")
			hidden[i] = name + "=" + Hidden
		}
		field.value.Set(reflect.ValueOf(hidden))
	}
	return &shown
}
