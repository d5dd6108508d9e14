// Package output prints CRI responses as tables, JSON, YAML or with a template.
package output

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
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/errs"
)

// Formats of -o.
const (
	JSON       = "json"
	YAML       = "yaml"
	Table      = "table"
	GoTemplate = "go-template"
)

// Format is -o and --template.
type Format struct {
	Name, template string
	allowed        []string
}

// Register adds the flags. The first format is the default.
func (f *Format) Register(cmd *cobra.Command, allowed ...string) {
	f.allowed = allowed
	cmd.Flags().StringVarP(&f.Name, "output", "o", allowed[0], "output format: "+strings.Join(allowed, ", "))
	if slices.Contains(allowed, GoTemplate) {
		cmd.Flags().StringVar(&f.template, "template", "", "Go template for -o go-template")
	}
}

// Check refuses a format that the verb does not have.
func (f *Format) Check() error {
	if !slices.Contains(f.allowed, f.Name) {
		return fmt.Errorf("-o %q: want %s: %w", f.Name, strings.Join(f.allowed, ", "), errs.Invalid)
	}
	return nil
}

// Message prints all fields of a CRI response, or calls table.
func (f *Format) Message(w io.Writer, msg proto.Message, table func(io.Writer) error) error {
	if err := f.Check(); err != nil {
		return err
	}
	if f.Name == Table {
		return table(w)
	}
	value, err := show.Message(msg)
	if err != nil {
		return err
	}
	return f.Value(w, value)
}

// Value prints any value as JSON, YAML or with the template.
func (f *Format) Value(w io.Writer, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot print as JSON: %w", err)
	}
	switch f.Name {
	case GoTemplate:
		return f.execute(w, data)
	case YAML:
		if data, err = yaml.JSONToYAML(data); err != nil {
			return fmt.Errorf("cannot print as YAML: %w", err)
		}
	}
	_, err = fmt.Fprintf(w, "%s\n", data)
	return err
}

func (f *Format) execute(w io.Writer, data []byte) error {
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

// WithInfo is a status with the verbose information of the runtime. A JSON object in the
// information stays one; a JSON string loses its quotes.
func WithInfo(status json.RawMessage, info map[string]string) map[string]any {
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

// Statuses prints several statuses as a list, and one alone without a list.
func (f *Format) Statuses(w io.Writer, all []map[string]any) error {
	if len(all) == 1 {
		return f.Value(w, all[0])
	}
	return f.Value(w, all)
}

// WriteTable prints rows in columns of the widths that crictl has.
func WriteTable(w io.Writer, header []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 20, 1, 3, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// Pairs prints labels or annotations under a title; nothing where there are none.
func Pairs(w io.Writer, title string, all map[string]string) {
	if all == nil {
		return
	}
	fmt.Fprintln(w, title+":")
	for _, key := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(w, "\t%s -> %s\n", key, all[key])
	}
}

// Field prints a line unless the value is empty.
func Field(w io.Writer, name, value string) {
	if value != "" {
		fmt.Fprintf(w, "%s: %s\n", name, value)
	}
}
