// Package show prints results of commands: a table for people, JSON or YAML for programs.
package show

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/errs"
)

// Flag is -o. The zero value is ready.
type Flag struct{ format format }

// format is a flag's value, checked as the command line is read: a command that prints only when something happens would
// report a wrong one late, or never.
type format string

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "string" }

func (f *format) Set(value string) error {
	if value != "" && value != "json" && value != "yaml" {
		return fmt.Errorf("the formats are json and yaml: %w", errs.Invalid)
	}
	*f = format(value)
	return nil
}

// Register adds the flag to cmd.
func (f *Flag) Register(cmd *cobra.Command) {
	cmd.Flags().VarP(&f.format, "output", "o", "json or yaml (default: for people)")
	//nolint:errcheck // it fails only for an unknown flag
	cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

// IsText reports whether the output is for people.
func (f *Flag) IsText() bool { return f.format == "" }

// Print prints value in the requested format, and calls people if there is none.
func (f *Flag) Print(w io.Writer, value any, people func(w io.Writer) error) error {
	if f.format == "" {
		return people(w)
	}
	return Value(w, value, string(f.format))
}

// Value prints a value, messages of CRI in it with their field names, as "json" or
// "yaml".
func Value(w io.Writer, value any, format string) error {
	data, err := encode(value)
	if err != nil {
		return err
	}
	if format == "yaml" {
		if data, err = yaml.JSONToYAML(data); err != nil {
			return fmt.Errorf("cannot print as YAML: %w", err)
		}
	}
	_, err = fmt.Fprintln(w, strings.TrimRight(string(data), "\n"))
	return err
}

func encode(value any) ([]byte, error) {
	if msg, ok := value.(proto.Message); ok {
		raw, err := Message(msg)
		if err != nil {
			return nil, err
		}
		value = raw
	}
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("cannot print as JSON: %w", err)
	}
	return data, nil
}

// Message is a message as JSON, with zero fields and without unset ones. In CRI zero is a value like any other: it is
// the state of a sandbox that is ready, and the exit code of success.
func Message(msg proto.Message) (json.RawMessage, error) {
	data, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(msg)
	if err != nil {
		return nil, fmt.Errorf("cannot print as JSON: %w", err)
	}
	return data, nil
}

// Info makes verbose info part of a larger value: what is JSON in it is taken as
// such.
func Info(info map[string]string) map[string]any {
	out := map[string]any{}
	for name, text := range info {
		if json.Valid([]byte(text)) {
			out[name] = json.RawMessage(text)
		} else {
			out[name] = text
		}
	}
	return out
}

// Table prints rows under a header, in columns.
func Table(w io.Writer, header []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// shortID is how many characters of an ID tables show; any unique prefix is enough in commands.
const shortID = 12

// ID shortens an id.
func ID(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(len(id), shortID)]
}

// Ago formats the distance of a time.
func Ago(unixNano int64, now time.Time) string {
	if unixNano == 0 {
		return "-"
	}
	return Age(now.Sub(time.Unix(0, unixNano)))
}

// Age formats a duration in its largest unit.
func Age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Size formats a number of bytes in the largest decimal unit, with three digits.
func Size(bytes uint64) string {
	const unit = 1000
	if bytes < unit {
		return fmt.Sprintf("%dB", bytes)
	}
	value := float64(bytes)
	for _, prefix := range "kMGTP" {
		value /= unit
		if text := strconv.FormatFloat(value, 'g', 3, 64); !strings.Contains(text, "e") {
			return text + string(prefix) + "B"
		}
	}
	return fmt.Sprintf("%.0fPB", value)
}

// Or returns a dash for an empty value, so that columns stay aligned.
func Or(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
