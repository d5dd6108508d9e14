package plan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/errs"
)

// PickPorts chooses a free port of this host for each that is config.FreePort, and checks that the
// others are free. It holds them until release is called, so that no other program gets them: call
// release just before the containers are created. It makes sense only if the engine is on this
// host.
func (p *Plan) PickPorts(ctx context.Context) (release func(), err error) {
	var taken []io.Closer
	release = func() {
		for _, t := range taken {
			t.Close()
		}
	}
	for i := range p.Containers {
		c := &p.Containers[i]
		for j := range c.Ports {
			port := &c.Ports[j]
			if port.Host == config.EnginePort {
				continue
			}
			held, number, err := take(ctx, *port)
			switch {
			case err == nil:
				port.Host = number
				taken = append(taken, held)
			case port.Host == config.FreePort && !errors.Is(err, syscall.EADDRNOTAVAIL):
				release()
				return nil, fmt.Errorf("failed to get random host port for port mapping: %s, %s: %w", c.Name, port.Field, err)
			case errors.Is(err, syscall.EADDRINUSE):
				release()
				return nil, fmt.Errorf("port %s/%s of %s is in use on this host; choose another in %s: %w",
					net.JoinHostPort(port.Listen, strconv.Itoa(port.Host)), port.Protocol, c.Name, port.Field, errs.Exists)
			case errors.Is(err, syscall.EADDRNOTAVAIL):
				release()
				field := port.Field + ".listenAddress"
				if port.Field == apiField {
					field = "networking.apiServerAddress"
				}
				err := fmt.Errorf("%s: %s is not an address of this host, which maps port %d/%s of %s; choose another: %w",
					field, port.Listen, port.Container, port.Protocol, c.Name, errs.Invalid)
				if port.Host == config.FreePort {
					err = fmt.Errorf("failed to get random host port for port mapping: %w", err)
				}
				return nil, err
			}
			// The engine reports any other error: it may have the privilege for ports below 1024,
			// and this process may not.
		}
	}
	return release, nil
}

// take listens on a port. The standard library has no SCTP; a port that is free for TCP is a good
// guess.
func take(ctx context.Context, port Port) (io.Closer, int, error) {
	var lc net.ListenConfig
	address := net.JoinHostPort(port.Listen, strconv.Itoa(port.Host))
	// "tcp" alone would listen on both families for 0.0.0.0.
	family := "6"
	if ip, err := netip.ParseAddr(port.Listen); err == nil && ip.Is4() {
		family = "4"
	}
	if port.Protocol == config.UDP {
		conn, err := lc.ListenPacket(ctx, "udp"+family, address)
		if err != nil {
			return nil, 0, err
		}
		return conn, portOf(conn.LocalAddr()), nil
	}
	listener, err := lc.Listen(ctx, "tcp"+family, address)
	if err != nil {
		return nil, 0, err
	}
	return listener, portOf(listener.Addr()), nil
}

func portOf(addr net.Addr) int {
	switch addr := addr.(type) {
	case *net.TCPAddr:
		return addr.Port
	case *net.UDPAddr:
		return addr.Port
	}
	return 0
}
