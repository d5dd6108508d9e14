// Package health has the probes that gates run after a restart: the unit is up, and
// the runtime does what a kubelet needs of it.
package health

import (
	"context"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/dockersock"
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
	engine := dockersock.New(d.Socket)
	defer engine.Close()
	if err := engine.Ping(ctx); err != nil {
		return fmt.Errorf("%w; its log: journalctl -u %s", err, d.Unit)
	}
	return nil
}
