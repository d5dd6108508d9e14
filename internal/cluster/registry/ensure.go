package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/nodeimage"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/registry/server"
	"github.com/berthrun/berth/internal/cluster/tunnel"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/undo"
)

// Created is what a call of Ensure has created, also one that fails.
type Created struct {
	// Container: the registry did not exist before.
	Container bool
	// Network is the name of the network that was created; "" is none.
	Network string
}

// Ensure creates the registry where there is none, starts it where it is stopped, and waits until
// it answers. The error is errs.Exists when it is at another port than the requested one.
func (m Manager) Ensure(ctx context.Context, o Options) (s Status, made Created, err error) {
	s, err = m.Status(ctx)
	switch {
	case errors.Is(err, errs.NotFound):
		if made, err = m.create(ctx, o); err != nil {
			return s, made, fmt.Errorf("cannot make the registry: %w", err)
		}
	case err != nil:
		return s, made, err
	default:
		if err := s.elsewhere(o.Port); err != nil {
			return s, made, err
		}
		if !s.Running {
			if err := m.Provider.Start(ctx, plan.RegistryName); err != nil {
				return s, made, err
			}
		}
	}
	if s, err = m.Status(ctx); err != nil {
		return s, made, err
	}
	if !made.Container {
		err = s.elsewhere(o.Port) // its port may not have been known while it was stopped
	}
	if err == nil {
		err = m.await(ctx, s)
	}
	return s, made, err
}

// elsewhere is an error if the registry is at another port than a requested one; 0 is any. It is nil
// while the registry's port is not known.
func (s Status) elsewhere(port int) error {
	if port == 0 || s.port == 0 || port == s.port {
		return nil
	}
	return fmt.Errorf("the registry is at %s already, not at port %d; request its port, or create it again after berth cluster registry delete: %w", s.Address, port, errs.Exists)
}

// create creates the container. When it fails, nothing is left.
func (m Manager) create(ctx context.Context, o Options) (made Created, err error) {
	if o.Port < 0 || o.Port > 65535 {
		return made, fmt.Errorf("port %d: want 1 to 65535, or 0 for a free one: %w", o.Port, errs.Invalid)
	}
	image := cmp.Or(o.Image, config.DefaultImage)
	if _, err := m.Provider.Ensure(ctx, image, nil); err != nil {
		return made, fmt.Errorf("%w\n  its program is in the image of nodes: berth cluster build-image --kubernetes v1.36.3", err)
	}
	found, err := m.Provider.Present(ctx, image)
	if err != nil {
		return made, err
	}
	if _, ours := found.Labels[nodeimage.LabelBerth]; !ours {
		return made, fmt.Errorf("the image %s is not of berth cluster build-image, so that the registry's program is not in it: %w", image, errs.Invalid)
	}
	p := plan.Plan{Containers: []plan.Container{plan.Registry(image, o.Port)}}
	if !m.Provider.Facts().Remote {
		release, err := p.PickPorts(ctx)
		if err != nil {
			return made, err
		}
		release()
	}
	network, err := m.Provider.EnsureNetwork(ctx, m.Network)
	if err != nil {
		return made, err
	}
	var u undo.Stack
	defer u.OnError(ctx, &err)
	if network.Made {
		u.Push("make the network "+network.Name, func(ctx context.Context) error { return m.Provider.RemoveNetwork(ctx, network.Name) })
	}
	command := []string{nodeimage.EntryProgram, "cluster", "in-node", "registry"}
	if err := m.Provider.Create(ctx, provider.Request{Network: network, Specs: []provider.Spec{{Container: p.Containers[0], Command: command}}}); err != nil {
		return made, err
	}
	made.Container = true
	if network.Made {
		made.Network = network.Name
	}
	return made, nil
}

// startTimeout bounds the wait for a registry that was started, which takes well below a second. If
// the provider gives it another link address, this host sends to the old one for most of a minute.
// requestTimeout bounds one request, which may have been sent there. patience is how long the port may refuse a connection before
// the registry is looked for inside of its container.
const (
	startTimeout   = time.Minute
	requestTimeout = 3 * time.Second
	patience       = 5 * time.Second
)

// await waits until the registry answers on this host. If it only answers inside of its container, its port is one of the engine's
// host, and this process is in a container that has the engine's socket.
func (m Manager) await(ctx context.Context, s Status) error {
	if m.Provider.Facts().Remote {
		return nil // its loopback is another one
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client := http.Client{Timeout: requestTimeout}
	inside := http.Client{Timeout: requestTimeout, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return tunnel.Dial(ctx, m.Provider, s.Name, plan.RegistryPort)
		},
		DisableKeepAlives: true,
	}}
	began := time.Now()
	var last error
	for {
		err := m.ping(ctx, client, s)
		if err == nil {
			return nil
		}
		if refused(err) && time.Since(began) >= cmp.Or(m.Patience, patience) && m.ping(ctx, inside, s) == nil {
			m.Warn(fmt.Sprintf("%s is a port of the host of %s, which this process does not reach: only programs of that host push to it, such as its engine", s.Address, m.Provider.Name()))
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the registry does not answer at %s; see its log (%s logs %s): %w: %w", s.Address, m.Provider.Name(), s.Name, errs.Unavailable, last)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// refused reports whether nothing listens at an address. A request to the old link address of a container gets no answer.
func refused(err error) bool {
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "dial" && !failed.Timeout()
}

// ping sends the registry a request.
func (m Manager) ping(ctx context.Context, client http.Client, s Status) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Address+"/v2/", nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", answer.Status)
	}
	m.warnIfOpen(answer.Header)
	return nil
}

// warnIfOpen warns of a registry whose program is older than the rule that only the host pushes.
func (m Manager) warnIfOpen(header http.Header) {
	if header.Get(server.WritersHeader) == "" {
		m.Warn("the registry's program is that of an older berth, and takes images from every pod of every cluster\n" +
			"  to fix it: berth cluster build-image, berth cluster registry delete, and start; what was pushed has to be pushed again")
	}
}
