package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/hoststoml"
)

// dialTimeout bounds a connection to a registry. All are made at once.
const dialTimeout = 2 * time.Second

// registryHosts connects to the hosts that hosts.toml names: pulls wait for a mirror that is gone.
func registryHosts(ctx context.Context, m *Machine, r *doctor.Report) error {
	if m.Berth.Engine == "docker" || m.Dial == nil {
		return nil
	}
	type host struct{ file, registry, url, address string }
	var hosts []host
	for _, dir := range m.Berth.RegistryDirs {
		names, err := m.host.Files().ReadDir(dir)
		if err = errs.IgnoreNotFound(err); err != nil {
			return err
		}
		for _, name := range names {
			file := path.Join(dir, name, hoststoml.Name)
			data, err := read(m.host, file)
			if err != nil {
				continue // a directory with certificates alone
			}
			described := hoststoml.Describe(data) // the check of registries reports its faults
			for i := range described.Endpoints {
				e := &described.Endpoints[i]
				if address := addressOf(e.Scheme + "://" + e.Host); address != "" {
					hosts = append(hosts, host{file, name, e.Shown(), address})
				}
			}
		}
	}
	faults := make([]error, len(hosts))
	var dials sync.WaitGroup
	for i, h := range hosts {
		dials.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			faults[i] = m.Dial(ctx, h.address)
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				faults[i] = fmt.Errorf("it does not answer within %s", dialTimeout)
			}
		})
	}
	dials.Wait()
	for i, h := range hosts {
		if faults[i] != nil {
			r.Add(warning, h.file, fmt.Sprintf("%s names %s, and no connection can be made to %s: %v: pulls of images of %s wait for it, or fail", h.file, h.url, h.address, faults[i], h.registry),
				"start it, or remove it from "+h.file+"; `berth image explain --try IMAGE` shows what each endpoint answers")
		}
	}
	return nil
}

// addressOf is where berth connects to for a URL; "" for none, or a proxy's that is configured in the environment.
func addressOf(text string) string {
	at, err := url.Parse(text)
	if err != nil || at.Hostname() == "" {
		return ""
	}
	if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: at}); err != nil || proxy != nil {
		return ""
	}
	port := map[string]string{"http": "80", "https": "443"}[at.Scheme]
	if port = cmp.Or(at.Port(), port); port == "" {
		return ""
	}
	return net.JoinHostPort(at.Hostname(), port)
}
