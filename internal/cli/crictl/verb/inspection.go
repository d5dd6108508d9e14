package verb

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/berthrun/berth/internal/cli/crictl/output"
	"github.com/berthrun/berth/internal/cli/show"
)

// Inspection has the flags that inspect, inspectp and inspecti share.
type Inspection struct {
	format output.Format
	quiet  bool
}

// Register adds the flags.
func (i *Inspection) Register(cmd *cobra.Command) {
	i.format.Register(cmd, output.JSON, output.YAML, output.GoTemplate, output.Table)
	cmd.Flags().BoolVarP(&i.quiet, "quiet", "q", false, "CRI's fields only")
}

// Status is the status of one object: as a value, and for people.
type Status struct {
	Value map[string]any
	Table func(io.Writer)
}

// Print prints the status of each ID. list finds the IDs if none is named.
func (i *Inspection) Print(cmd *cobra.Command, ids []string, list func() ([]string, error), ask func(id string, verbose bool) (*Status, error)) error {
	if err := i.format.Check(); err != nil {
		return err
	}
	var err error
	if len(ids) == 0 {
		if ids, err = list(); err != nil {
			return err
		}
	}
	if len(ids) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "crictl: no id was given, and none was found")
		return cmd.Help()
	}
	var values []map[string]any
	for _, id := range ids {
		found, err := ask(id, !i.quiet)
		if err != nil {
			return err
		}
		if i.format.Name == output.Table {
			found.Table(cmd.OutOrStdout())
			continue
		}
		values = append(values, found.Value)
	}
	if i.format.Name == output.Table {
		return nil
	}
	return i.format.Statuses(cmd.OutOrStdout(), values)
}

// Described is a status as JSON with readable times.
func Described(status proto.Message, times map[string]time.Time) (json.RawMessage, error) {
	data, err := show.Message(status)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("cannot print as JSON: %w", err)
	}
	for name, at := range times {
		fields[name] = json.RawMessage(`"` + at.Format(time.RFC3339Nano) + `"`)
	}
	return json.Marshal(fields)
}
