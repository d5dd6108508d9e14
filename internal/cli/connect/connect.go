// Package connect has the flag that chooses the runtime.
package connect

import (
	"cmp"
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/criclient"
)

// Flag is --endpoint. The zero value is ready.
type Flag struct{ value string }

// Register adds the flag to cmd and all its subcommands.
func (f *Flag) Register(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&f.value, "endpoint", "",
		"CRI socket, unix:///PATH (default: $BERTH_ENDPOINT, $CONTAINER_RUNTIME_ENDPOINT, "+criclient.DefaultEndpoint+")")
}

// Given returns the endpoint that the flag or the environment names, "" if neither does. byUser is true if it is the flag.
func (f *Flag) Given() (endpoint string, byUser bool) {
	return cmp.Or(f.value, os.Getenv("BERTH_ENDPOINT"), os.Getenv("CONTAINER_RUNTIME_ENDPOINT")), f.value != ""
}

// Dial connects to the runtime of the flag or the environment. The caller closes the connection.
func (f *Flag) Dial(ctx context.Context) (*criclient.Conn, error) {
	endpoint, _ := f.Given()
	return criclient.Dial(ctx, cmp.Or(endpoint, criclient.DefaultEndpoint))
}

// Use runs a command with a connection.
func (f *Flag) Use(cmd *cobra.Command, do func(ctx context.Context, conn *criclient.Conn) error) error {
	conn, err := f.Dial(cmd.Context())
	if err != nil {
		return err
	}
	defer conn.Close()
	return do(cmd.Context(), conn)
}
