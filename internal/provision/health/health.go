// Package health has the probes that gates run after a restart: the unit is up, and
// the runtime does what a kubelet needs of it.
package health

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// callTimeout bounds one question.
const callTimeout = 10 * time.Second

// Active wants that a unit runs.
type Active struct{ Unit string }

// Name is "UNIT runs".
func (a Active) Name() string { return a.Unit + " runs" }

// Run asks systemd.
func (a Active) Run(ctx context.Context, host provision.Host) error {
	state, err := host.Units().State(ctx, a.Unit)
	if err != nil {
		return err
	}
	if state.Active != "active" {
		return fmt.Errorf("it is %s (%s), result %s; its log: journalctl -u %s: %w",
			state.Active, state.Sub, state.Result, a.Unit, errs.Unavailable)
	}
	return nil
}

// Docker wants that a Docker Engine answers.
type Docker struct {
	// Socket is the path of the API's socket.
	Socket string
	// Unit has the log.
	Unit string
}

// Name is "docker answers on SOCKET".
func (d Docker) Name() string { return "docker answers on " + d.Socket }

// Run asks for _ping.
func (d Docker) Run(ctx context.Context, _ provision.Host) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", d.Socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/_ping", nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return fmt.Errorf("it does not; its log: journalctl -u %s: %w: %w", d.Unit, errs.Unavailable, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		words, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("it says %s: %s: %w", resp.Status, words, errs.Unavailable)
	}
	return nil
}
