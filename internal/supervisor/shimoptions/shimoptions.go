// Package shimoptions has the options of containerd's shims, as a configuration names them.
package shimoptions

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Type is a type of options. Its value is a message of protocol buffers.
type Type struct {
	// URL is the name of the message.
	URL string
	// fields are the options that a configuration can have.
	fields map[string]field
	// root and systemd are the numbers of the options that berth sets, 0 for none, and uid and gid of those that
	// it sets unless a configuration does.
	root, systemd, uid, gid int
}

// Values are the options that berth sets. A type without such options does not have them.
type Values struct {
	// Root is the directory for the state of containers.
	Root string
	// Systemd selects the cgroup driver of systemd.
	Systemd bool
	// UID and GID own the pipes that the shim makes for a container's output.
	UID, GID int
}

type field struct {
	number int
	kind   kind
}

type kind int

const (
	text kind = iota
	flag
	count
)

// runc returns the options of containerd-shim-runc-v2.
func runc() Type {
	return Type{
		URL: "containerd.runc.v1.Options",
		fields: map[string]field{
			"NoPivotRoot": {1, flag}, "NoNewKeyring": {2, flag}, "ShimCgroup": {3, text}, "IoUid": {4, count}, "IoGid": {5, count},
			"BinaryName": {6, text}, "CriuImagePath": {10, text}, "CriuWorkPath": {11, text},
		},
		root: 7, systemd: 9, uid: 4, gid: 5,
	}
}

// generic returns the options of all other shims.
func generic() Type {
	return Type{
		URL:    "runtimeoptions.v1.Options",
		fields: map[string]field{"TypeUrl": {1, text}, "ConfigPath": {2, text}, "ConfigBody": {3, text}},
	}
}

// Of returns the type of the options of a shim, by the name of its program.
func Of(program string) Type {
	if strings.HasPrefix(filepath.Base(program), "containerd-shim-runc-") {
		return runc()
	}
	return generic()
}

// Program is the name of the program of a runtime's type, such as containerd-shim-runc-v2 of
// io.containerd.runc.v2; "" when name is not such a type.
func Program(name string) string {
	parts := strings.Split(name, ".")
	if len(parts) < 3 || strings.Contains(name, "/") || slices.Contains(parts, "") {
		return ""
	}
	return "containerd-shim-" + parts[len(parts)-2] + "-" + parts[len(parts)-1]
}

// Check returns what is wrong with options ("Name=value"), "" for nothing.
func (t Type) Check(options []string) string {
	_, problem := t.encode(options)
	return problem
}

// Encode returns the message.
func (t Type) Encode(options []string, values Values) ([]byte, error) {
	configured, problem := t.encode(options)
	if problem != "" {
		return nil, fmt.Errorf("options: %s", problem)
	}
	var m []byte
	if t.root != 0 {
		m = appendText(m, t.root, values.Root)
	}
	if t.systemd != 0 && values.Systemd {
		m = appendNumber(m, t.systemd, 1)
	}
	for number, id := range map[int]int{t.uid: values.UID, t.gid: values.GID} {
		if number != 0 && id > 0 {
			m = appendNumber(m, number, uint64(id))
		}
	}
	return append(m, configured...), nil // the last value of an option counts
}

func (t Type) encode(options []string) (m []byte, problem string) {
	for _, option := range options {
		name, value, ok := strings.Cut(option, "=")
		if !ok {
			return nil, fmt.Sprintf("%q: want Name=value", option)
		}
		f, known := t.fields[name]
		switch {
		case !known && t.root != 0 && (name == "Root" || name == "SystemdCgroup"):
			return nil, fmt.Sprintf("%s: berth sets it (keys root and runtime.cgroup_driver)", name)
		case !known:
			return nil, fmt.Sprintf("%s: no such option; there are %s", name, strings.Join(slices.Sorted(maps.Keys(t.fields)), ", "))
		case f.kind == text:
			m = appendText(m, f.number, value)
		case f.kind == flag:
			on, err := strconv.ParseBool(value)
			if err != nil {
				return nil, fmt.Sprintf("%s: %q: want true or false", name, value)
			}
			if on {
				m = appendNumber(m, f.number, 1)
			}
		default:
			n, err := strconv.ParseUint(value, 10, 32)
			if err != nil {
				return nil, fmt.Sprintf("%s: %q: want a number", name, value)
			}
			m = appendNumber(m, f.number, n)
		}
	}
	return m, ""
}

const binaryOption = "BinaryName="

// Binary returns the OCI runtime that runc's shim runs, "" for a shim that has none.
func (t Type) Binary(options []string) string {
	if t.root == 0 {
		return ""
	}
	name := ""
	for _, option := range options {
		if value, ok := strings.CutPrefix(option, binaryOption); ok {
			name = value
		}
	}
	return cmp.Or(name, "runc")
}

// WithBinary returns options of runc's shim with another OCI runtime.
func (t Type) WithBinary(options []string, path string) []string {
	others := slices.DeleteFunc(slices.Clone(options), func(o string) bool { return strings.HasPrefix(o, binaryOption) })
	return append(others, binaryOption+path)
}

func appendText(m []byte, number int, value string) []byte {
	m = binary.AppendUvarint(m, uint64(number)<<3|2) //nolint:gosec // small constants
	m = binary.AppendUvarint(m, uint64(len(value)))
	return append(m, value...)
}

func appendNumber(m []byte, number int, value uint64) []byte {
	m = binary.AppendUvarint(m, uint64(number)<<3) //nolint:gosec // small constants
	return binary.AppendUvarint(m, value)
}
