package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/connect"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/reload"
)

func newInfo() *cobra.Command {
	var endpoint connect.Flag
	var output show.Flag
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show the runtime, whether it is ready, and its warnings",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				version, err := conn.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
				if err != nil {
					return err
				}
				status, err := conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
				if err != nil {
					return err
				}
				value, err := infoValue(conn.Endpoint, version, status)
				if err != nil {
					return err
				}
				return output.Print(cmd.OutOrStdout(), value, func(w io.Writer) error {
					return printInfo(w, conn.Endpoint, version, status)
				})
			})
		},
	}
	endpoint.Register(cmd)
	output.Register(cmd)
	return cmd
}

func infoValue(endpoint string, version *runtimeapi.VersionResponse, status *runtimeapi.StatusResponse) (any, error) {
	v, err := show.Message(version)
	if err != nil {
		return nil, err
	}
	info := status.Info
	bare := &runtimeapi.StatusResponse{Status: status.Status, RuntimeHandlers: status.RuntimeHandlers, Features: status.Features}
	s, err := show.Message(bare)
	if err != nil {
		return nil, err
	}
	return map[string]any{"endpoint": endpoint, "version": v, "status": s, "info": show.Info(info)}, nil
}

func printInfo(w io.Writer, endpoint string, version *runtimeapi.VersionResponse, status *runtimeapi.StatusResponse) error {
	rows := [][]string{{"Runtime:", version.RuntimeName + " " + version.RuntimeVersion}}
	for _, c := range status.GetStatus().GetConditions() {
		state := "yes"
		if !c.Status {
			state = fmt.Sprintf("no: %s: %s", c.Reason, c.Message)
		} else if c.Message != "" {
			state = fmt.Sprintf("yes; %s: %s", c.Reason, c.Message)
		}
		rows = append(rows, []string{c.Type + ":", state})
	}
	for _, h := range status.RuntimeHandlers {
		name := h.Name
		if name == "" {
			name = "(default)"
		}
		rows = append(rows, []string{"Handler:", name})
	}
	var instance struct{ Name, Root, State string }
	// A runtime that is not berth has none.
	if json.Unmarshal([]byte(status.Info["instance"]), &instance) == nil {
		rows = append(rows, []string{"Instance:", instance.Name}, []string{"Root:", instance.Root}, []string{"State:", instance.State})
	}
	reloaded := reload.Parse(status.Info)
	if refusal := reloaded.Refusal(); refusal != "" {
		rows = append(rows, []string{"Last reload:", refusal})
	}
	if len(reloaded.NeedRestart) > 0 {
		rows = append(rows, []string{"Keys that need a restart:", strings.Join(reloaded.NeedRestart, ", ")})
	}
	if err := show.Table(w, []string{"Endpoint:", endpoint}, rows); err != nil {
		return err
	}
	// The configuration is long; -o shows it, and `berth config dump`.
	info := show.Info(status.Info)
	delete(info, "config")
	delete(info, "instance")
	delete(info, "reload")
	if status.Info["page"] == "{}" { // it is off
		delete(info, "page")
	}
	if len(info) == 0 {
		return nil
	}
	return show.Value(w, info, "yaml")
}
