package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/connect"
	"github.com/berthrun/berth/internal/cli/daemon/pageserver"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/nodepage"
	"github.com/berthrun/berth/internal/reload"
)

func newPage() *cobra.Command {
	var endpoint connect.Flag
	cmd := &cobra.Command{
		Use:   "page",
		Short: "Print the address of the node page, with its token",
		Long: "The node page shows pods, jobs, logs, events, start times, images and, on request, the findings of `berth doctor` in\n" +
			"a browser; page.listen turns it on. Who has the address can read the logs of all containers: do not pass it on.\n" +
			"From another machine, forward the port: ssh -L 9718:127.0.0.1:9718 NODE. Other runtimes do not support\nthis.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				status, err := conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
				if err != nil {
					return err
				}
				// The page may be off, or elsewhere, because the file that says otherwise was refused.
				if refusal := reload.Parse(status.GetInfo()).Refusal(); refusal != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), "warning: the last reload of the configuration was "+refusal)
				}
				address, fault, err := pageAddress(status.GetInfo())
				if err != nil {
					return err
				}
				if fault != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), "warning: the node page is served as before the last reload; mend the cause and reload the configuration:", fault)
				}
				fmt.Fprintln(cmd.OutOrStdout(), address)
				return nil
			})
		},
	}
	endpoint.Register(cmd)
	return cmd
}

// pageAddress makes the address from a daemon's verbose status. fault is why the page is not served as the configuration says.
func pageAddress(info map[string]string) (address, fault string, err error) {
	var instance struct{ State string }
	var page pageserver.State
	if json.Unmarshal([]byte(info["instance"]), &instance) != nil || json.Unmarshal([]byte(info["page"]), &page) != nil {
		return "", "", fmt.Errorf("the runtime does not say where its node page is: it is not berth, or an older one: %w", errs.Unsupported)
	}
	switch {
	case page.Listen == "" && page.Fault != "":
		return "", "", fmt.Errorf("the node page is not served; mend the cause and reload the configuration (systemctl reload berth): %s: %w", page.Fault, errs.State)
	case page.Listen == "":
		return "", "", fmt.Errorf("the node page is off: set page.listen in the daemon's configuration, for example to 127.0.0.1:9718, and reload it (systemctl reload berth); a daemon without a configuration needs `berth serve --page 127.0.0.1:9718`: %w", errs.State)
	}
	host, port, err := net.SplitHostPort(page.Listen)
	if err != nil {
		return "", "", fmt.Errorf("cannot read page.listen %q: %w", page.Listen, err)
	}
	scheme := "http"
	if page.TLS {
		scheme = "https"
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return "", "", fmt.Errorf("cannot read the host's name: %w", err)
		}
	}
	address = scheme + "://" + net.JoinHostPort(host, port) + "/"
	if page.Auth != "token" {
		return address, page.Fault, nil
	}
	token, err := nodepage.ReadToken(instance.State)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", "", fmt.Errorf("the node page has no token, so it is not served: look at the daemon's log: %w", errs.State)
	case errors.Is(err, os.ErrPermission):
		return "", "", fmt.Errorf("the token of the node page is for root: run this as root: %w", err)
	case err != nil:
		return "", "", err
	}
	return address + "#token=" + token, page.Fault, nil
}
