// Package health has the probes that gates run after a restart: the unit is up, and
// the runtime does what a kubelet needs of it.
package health

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/provision"
)

// callTimeout bounds one request.
const callTimeout = 10 * time.Second

// Docker checks that a Docker Engine answers.
type Docker struct {
	// Socket is the path of the API's socket.
	Socket string
	// Unit has the log.
	Unit string
}

// Name is "docker answers on SOCKET".
func (d Docker) Name() string { return "docker answers on " + d.Socket }

// Run requests _ping.
func (d Docker) Run(ctx context.Context, _ provision.Host) (err error) {
	engine, err := api.New(api.Options{Endpoint: "unix://" + d.Socket, Timeout: callTimeout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	if _, err := engine.Ping(ctx, client.PingOptions{}); err != nil {
		return fmt.Errorf("%w; its log: journalctl -u %s", err, d.Unit)
	}
	return nil
}
