package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/berthrun/berth/internal/errs"
)

// Fault is one thing that is wrong with a configuration.
type Fault struct {
	// File and Line are the place of the value. Line is 0 if the value is not in the
	// file: a flag, or a default that another value contradicts.
	File string
	Line int
	// Key is dotted, "" for a fault of the whole file.
	Key string
	// Problem quotes the value and says what is accepted.
	Problem string
}

func (f Fault) String() string {
	var where strings.Builder
	if f.File != "" {
		where.WriteString(f.File + ":")
		if f.Line > 0 {
			fmt.Fprintf(&where, "%d:", f.Line)
		}
		where.WriteByte(' ')
	}
	if f.Key != "" {
		where.WriteString(f.Key + ": ")
	}
	return where.String() + f.Problem
}

// Faults is every fault of a configuration, as one error of kind errs.Invalid.
type Faults []Fault

func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.String()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives Faults their kind.
func (f Faults) Unwrap() error { return errs.Invalid }

// Check looks at more of a configuration than its text, such as the files that its keys name. It reports each fault with
// the dotted key that has it.
type Check func(cfg *Daemon, report func(key, format string, args ...any))

// LoadDaemon returns the defaults, overlaid by the file (if not "") and then by
// flags (key to text as on the command line). The checks see what is set; their
// faults count as those of the text, except for keys that have one already.
//
// The error is of type Faults, or of
// kind errs.NotFound when the file is not there. With Faults it returns the other
// keys as they are set, and the defaults of those with a fault: berth does not run
// with such a configuration, but the directories that it names can be examined.
func LoadDaemon(file string, flags map[string]string, checks ...Check) (*Daemon, error) {
	cfg := DefaultDaemon()
	l := loader{cfg: cfg, file: file, fields: map[string]Field{}, lines: map[string]int{}}
	for _, field := range Fields(cfg) {
		l.fields[field.Key] = field
	}
	if file != "" {
		data, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("configuration file %s: %w; `berth config default` prints one", file, errs.NotFound)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read configuration: %w", err)
		}
		l.readFile(data)
	}
	l.readFlags(flags)
	cfg.State = withoutLinks(cfg.State)
	for _, field := range l.fields {
		if problem := field.checkOneOf(); problem != "" {
			l.fault(field.Key, "%s", problem)
		}
	}
	// A value that could not be read keeps its default, which has no fault.
	cfg.check(l.fault)
	l.run(checks)
	if len(l.faults) > 0 {
		slices.SortStableFunc(l.faults, func(a, b Fault) int {
			return cmpFault(a, b)
		})
		l.dropFaulty()
		return cfg, l.faults
	}
	return cfg, nil
}

// withoutLinks follows the symbolic links of a path, as far as it exists: /var/run/berth is /run/berth. The kernel names
// mounts by such paths, libcontainer takes no other root filesystem, and the state directory is the name of its berth.
func withoutLinks(path string) string {
	if !filepath.IsAbs(path) {
		return path
	}
	at, rest := filepath.Clean(path), ""
	for at != "/" {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(real, rest)
		}
		at, rest = filepath.Dir(at), filepath.Join(filepath.Base(at), rest)
	}
	return path
}

// run runs checks of others.
func (l *loader) run(checks []Check) {
	faulty := slices.Clone(l.faults)
	for _, check := range checks {
		check(l.cfg, func(key, format string, args ...any) {
			if !slices.ContainsFunc(faulty, func(f Fault) bool { return f.Key == key }) {
				l.fault(key, format, args...)
			}
		})
	}
}

// dropFaulty gives each key with a fault its default.
func (l *loader) dropFaulty() {
	for _, usual := range Fields(DefaultDaemon()) {
		if slices.ContainsFunc(l.faults, func(f Fault) bool { return f.Key == usual.Key }) {
			l.fields[usual.Key].value.Set(usual.value)
		}
	}
	if slices.ContainsFunc(l.faults, func(f Fault) bool { return strings.HasPrefix(f.Key, handlersKey) }) {
		l.cfg.Handlers = nil
	}
}

func cmpFault(a, b Fault) int {
	if a.Line != b.Line {
		return a.Line - b.Line
	}
	return strings.Compare(a.Key+a.Problem, b.Key+b.Problem)
}

// loader gathers every fault instead of ending at the first.
type loader struct {
	cfg    *Daemon
	file   string
	fields map[string]Field
	// lines has the line of each key and table of the file.
	lines  map[string]int
	faults Faults
}

func (l *loader) fault(key, format string, args ...any) {
	fault := Fault{Key: key, Line: l.lines[key], Problem: fmt.Sprintf(format, args...)}
	if fault.Line > 0 {
		fault.File = l.file
	}
	l.faults = append(l.faults, fault)
}

func (l *loader) readFile(data []byte) {
	l.findLines(data)
	var tree map[string]any
	if err := toml.Unmarshal(data, &tree); err != nil {
		fault := Fault{File: l.file, Problem: err.Error()}
		var decode *toml.DecodeError
		if errors.As(err, &decode) {
			fault.Line, _ = decode.Position()
			fault.Key = strings.Join(decode.Key(), ".")
		}
		l.faults = append(l.faults, fault)
		return
	}
	l.readTree("", tree)
}

// readTree takes the keys of one table one at a time, so that a wrong one does not
// hide the next.
func (l *loader) readTree(prefix string, tree map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		key := prefix + name
		table, isTable := tree[name].(map[string]any)
		field, known := l.fields[key]
		switch {
		case key == handlersKey && isTable:
			l.readHandlers(table)
		case known:
			l.set(field, tree[name])
		case isTable && prefix == "" && l.isSection(name):
			l.readTree(name+".", table)
		default:
			l.fault(key, "no such key%s", l.suggest(key))
		}
	}
}

func (l *loader) isSection(name string) bool {
	return slices.ContainsFunc(Sections(l.cfg), func(s Section) bool { return s.Name == name })
}

func (l *loader) set(field Field, value any) {
	text, err := toml.Marshal(nest(field.Key, value))
	if err == nil {
		err = toml.Unmarshal(text, l.cfg)
	}
	if err != nil {
		l.fault(field.Key, "%s", describeTypeError(err, field, value))
	}
}

// describeTypeError translates a decoder's error from Go's terms to the file's.
func describeTypeError(err error, field Field, value any) string {
	want := map[string]string{
		"string": "a string", "int": "a whole number", "*int": "a whole number", "bool": "true or false", "*bool": "true or false", "[]string": "a list of strings",
		"map[string]config.Handler": "a table for each handler",
	}[field.value.Type().String()]
	if want == "" {
		text := err.Error()
		return strings.TrimPrefix(text, "toml: ")
	}
	if field.SecretValues {
		return "want " + want
	}
	return fmt.Sprintf("%v: want %s", value, want)
}

func (l *loader) readFlags(flags map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(flags)) {
		delete(l.lines, key) // the flag overrides the file
		l.set(l.fields[key], flags[key])
	}
}

// suggest names the known key that a misspelt one most likely stands for.
func (l *loader) suggest(key string) string {
	name := key[strings.LastIndex(key, ".")+1:]
	for _, known := range slices.Sorted(maps.Keys(l.fields)) {
		last := known[strings.LastIndex(known, ".")+1:]
		if last == name || distance(known, key) <= 2 {
			return fmt.Sprintf("; did you mean %s?", known)
		}
	}
	return "; `berth config default` prints every key"
}

// findLines records the line of every key and table header.
func (l *loader) findLines(data []byte) {
	var p unstable.Parser
	p.Reset(data)
	table := ""
	for p.NextExpression() {
		node := p.Expression()
		var parts []string
		line := 0
		for keys := node.Key(); keys.Next(); {
			if line == 0 {
				line = p.Shape(p.Range(keys.Node().Data)).Start.Line
			}
			parts = append(parts, string(keys.Node().Data))
		}
		key := strings.Join(parts, ".")
		switch node.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = key + "."
			l.lines[key] = line
		case unstable.KeyValue:
			l.lines[table+key] = line
		}
	}
}

func nest(key string, value any) map[string]any {
	head, rest, nested := strings.Cut(key, ".")
	if nested {
		return map[string]any{head: nest(rest, value)}
	}
	return map[string]any{head: value}
}

// distance is the number of single-letter edits between two words.
func distance(a, b string) int {
	previous := make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := range len(a) {
		current := make([]int, len(b)+1)
		current[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			current[j+1] = min(previous[j]+cost, previous[j+1]+1, current[j]+1)
		}
		previous = current
	}
	return previous[len(b)]
}
