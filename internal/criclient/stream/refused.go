package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// refusedTimeout bounds the second attempt to connect.
const refusedTimeout = time.Second

// explain adds to the error of a session why nothing can be reached. A server on a loopback address is
// only reached from its own network namespace. The libraries keep only the text of the system's error,
// so explain connects again. Other errors stay.
func explain(ctx context.Context, u *url.URL, err error) error {
	if ip := net.ParseIP(u.Hostname()); ip == nil || !ip.IsLoopback() {
		return err
	}
	dialer := net.Dialer{Timeout: refusedTimeout}
	conn, dialErr := dialer.DialContext(context.WithoutCancel(ctx), "tcp", u.Host)
	if dialErr == nil {
		conn.Close()
	}
	if !errors.Is(dialErr, syscall.ECONNREFUSED) {
		return err
	}
	return fmt.Errorf("nothing listens at %s in this network namespace: run the command in that of the runtime, "+
		"or have the runtime stream on an address that is reached from here (berth: stream.address): %w", u.Host, errs.Unavailable)
}
