package crictl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/errs"
)

// Formats of -o.
const (
	asJSON     = "json"
	asYAML     = "yaml"
	asTable    = "table"
	asTemplate = "go-template"
)

// format is -o and --template.
type format struct {
	name, template string
	allowed        []string
}

// register adds the flags. The first format is the default.
func (f *format) register(cmd *cobra.Command, allowed ...string) {
	f.allowed = allowed
	cmd.Flags().StringVarP(&f.name, "output", "o", allowed[0], "output format: "+strings.Join(allowed, ", "))
	if slices.Contains(allowed, asTemplate) {
		cmd.Flags().StringVar(&f.template, "template", "", "Go template for -o go-template")
	}
}

func (f *format) check() error {
	if !slices.Contains(f.allowed, f.name) {
		return fmt.Errorf("-o %q: want %s: %w", f.name, strings.Join(f.allowed, ", "), errs.Invalid)
	}
	return nil
}

// message prints an answer of CRI, every field of it, or calls table.
func (f *format) message(w io.Writer, msg proto.Message, table func(io.Writer) error) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.name == asTable {
		return table(w)
	}
	value, err := message(msg)
	if err != nil {
		return err
	}
	return f.value(w, value)
}

// message is a message as JSON, with fields that are zero and without those that are not set.
func message(msg proto.Message) (json.RawMessage, error) {
	data, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(msg)
	if err != nil {
		return nil, fmt.Errorf("cannot print as JSON: %w", err)
	}
	return data, nil
}

// value prints any value as JSON, YAML or by the template.
func (f *format) value(w io.Writer, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot print as JSON: %w", err)
	}
	switch f.name {
	case asTemplate:
		return f.execute(w, data)
	case asYAML:
		if data, err = yaml.JSONToYAML(data); err != nil {
			return fmt.Errorf("cannot print as YAML: %w", err)
		}
	}
	_, err = fmt.Fprintf(w, "%s\n", data)
	return err
}

func (f *format) execute(w io.Writer, data []byte) error {
	parsed, err := template.New("").Option("missingkey=error").Funcs(template.FuncMap{
		"json":  func(v any) (string, error) { data, err := json.Marshal(v); return string(data), err },
		"lower": strings.ToLower, "upper": strings.ToUpper,
	}).Parse(f.template)
	if err != nil {
		return fmt.Errorf("cannot read the template: %w: %w", errs.Invalid, err)
	}
	var value any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return fmt.Errorf("cannot read what was found: %w", err)
	}
	if err := parsed.Execute(w, value); err != nil {
		return fmt.Errorf("cannot print by the template: %w: %w", errs.Invalid, err)
	}
	_, err = fmt.Fprintln(w)
	return err
}

// withInfo is a status with what a runtime tells beyond CRI's fields beside it. What is a JSON
// object in it is taken as such, what is a JSON string loses its quotes.
func withInfo(status json.RawMessage, info map[string]string) map[string]any {
	all := map[string]any{"status": status}
	for name, text := range info {
		if strings.HasPrefix(text, "{") && json.Valid([]byte(text)) {
			all[name] = json.RawMessage(text)
		} else {
			all[name] = strings.Trim(text, `"`)
		}
	}
	return all
}

// statuses prints those of several things: one alone is in no list.
func (f *format) statuses(w io.Writer, all []map[string]any) error {
	if len(all) == 1 {
		return f.value(w, all[0])
	}
	return f.value(w, all)
}

// table prints rows in columns of the widths that crictl has.
func table(w io.Writer, header []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 20, 1, 3, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// pairs prints labels or annotations under a title; nothing where there are none.
func pairs(w io.Writer, title string, all map[string]string) {
	if all == nil {
		return
	}
	fmt.Fprintln(w, title+":")
	for _, key := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(w, "\t%s -> %s\n", key, all[key])
	}
}

// field prints a line where there is something to say.
func field(w io.Writer, name, value string) {
	if value != "" {
		fmt.Fprintf(w, "%s: %s\n", name, value)
	}
}
