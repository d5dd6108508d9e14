package innode

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"text/template"

	"github.com/berthrun/berth/internal/errs"
)

// Files of a load balancer.
const (
	// BalancerFile has its last configuration, as JSON of Balancer.
	BalancerFile = Dir + "/balancer.json"
	// HAProxyFile is haproxy's configuration, generated from it.
	HAProxyFile = Dir + "/haproxy.cfg"
	// masterSocket is the command socket of haproxy's first process.
	masterSocket = "/run/haproxy-master.sock"
)

// apiPort is the port of the API on the balancer and on control planes.
const apiPort = 6443

// Balancer is the configuration of a load balancer, which balances the API over control planes.
type Balancer struct {
	// IPv4 and IPv6 are the families of the cluster. It always listens on IPv4: the host port of an
	// IPv6-only cluster may be on 127.0.0.1.
	IPv4 bool `json:"ipv4"`
	IPv6 bool `json:"ipv6"`
	// Servers are the control planes.
	Servers []Server `json:"servers"`
}

// Server is a control plane.
type Server struct {
	Name string `json:"name"`
	// Host is its address, or, if that may change at a restart, its name in the engine's DNS.
	Host string `json:"host"`
}

//go:embed haproxy.cfg
var haproxyTemplate string

// config is haproxy's configuration.
func (b Balancer) config() (string, error) {
	view := struct {
		Balancer
		Resolve bool
		Prefer  string
	}{Balancer: b, Prefer: "ipv4"}
	if !b.IPv4 {
		view.Prefer = "ipv6"
	}
	for _, s := range b.Servers {
		if strings.ContainsAny(s.Name+s.Host, " \t\r\n#\"'\\") || s.Name == "" || s.Host == "" {
			return "", fmt.Errorf("a load balancer's server %q at %q: %w", s.Name, s.Host, errs.Invalid)
		}
		view.Resolve = view.Resolve || s.Named()
	}
	parsed, err := template.New("haproxy.cfg").Parse(haproxyTemplate)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	if err := parsed.Execute(&text, view); err != nil {
		return "", err
	}
	return text.String(), nil
}

// Named reports whether the server's host is a name.
func (s Server) Named() bool {
	_, err := netip.ParseAddr(s.Host)
	return err != nil
}

// At is the host and port of the server.
func (s Server) At() string { return net.JoinHostPort(s.Host, strconv.Itoa(apiPort)) }

// Balance executes haproxy with the last configuration in place of this process. It returns only
// with an error.
func Balance() error {
	if os.Getpid() != 1 {
		return errors.New("this is for the first process of a load balancer")
	}
	n := node{"/"}
	program, err := exec.LookPath("haproxy")
	if err != nil {
		return fmt.Errorf("the image has no haproxy; build it again with berth cluster build-image: %w: %w", errs.Unsupported, err)
	}
	if err := n.writeLastConfig(); err != nil {
		return err
	}
	return fmt.Errorf("cannot run %s: %w", program, syscall.Exec(program, n.haproxy(), os.Environ()))
}

// haproxy is the command of its first process, which starts others for each configuration.
func (n node) haproxy() []string {
	return []string{"haproxy", "-W", "-S", n.path(masterSocket) + ",mode,600", "-f", n.path(HAProxyFile)}
}

// writeLastConfig writes haproxy's configuration from the last one of the balancer. Without one it
// has no servers.
func (n node) writeLastConfig() error {
	var b Balancer
	text, err := os.ReadFile(n.path(BalancerFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		b.IPv4 = true
	case err != nil:
		return fmt.Errorf("cannot read what to balance: %w", err)
	default:
		if err := json.Unmarshal(text, &b); err != nil {
			return fmt.Errorf("cannot read what to balance: %s: %w: %w", BalancerFile, errs.Invalid, err)
		}
	}
	config, err := b.config()
	if err != nil {
		return err
	}
	return n.write(HAProxyFile, config)
}

// Rebalance gives a running balancer a new configuration, as JSON of Balancer, from outside of its
// first process. Connections stay open. It returns when haproxy uses the configuration. A
// configuration that haproxy refuses changes nothing.
func Rebalance(ctx context.Context, from io.Reader) error {
	return node{"/"}.rebalance(ctx, from)
}

func (n node) rebalance(ctx context.Context, from io.Reader) error {
	text, err := io.ReadAll(from)
	if err != nil {
		return fmt.Errorf("cannot read what to balance: %w", err)
	}
	var b Balancer
	if err := json.Unmarshal(text, &b); err != nil {
		return fmt.Errorf("cannot read what to balance: %w: %w", errs.Invalid, err)
	}
	config, err := b.config()
	if err != nil {
		return err
	}
	next := HAProxyFile + ".next"
	if err := n.write(next, config); err != nil {
		return err
	}
	// Names need not resolve yet: their hosts may be about to start.
	check := exec.CommandContext(ctx, "haproxy", "-c", "-q", "-f", n.path(next))
	if out, err := check.CombinedOutput(); err != nil {
		return fmt.Errorf("haproxy does not take its configuration: %w: %s", err, strings.TrimSpace(string(out)))
	}
	if err := os.Rename(n.path(next), n.path(HAProxyFile)); err != nil {
		return err
	}
	if err := n.replace(BalancerFile, text); err != nil {
		return err
	}
	return master{n.path(masterSocket)}.reload(ctx)
}
