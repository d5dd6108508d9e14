package registry

import (
	"context"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// Explain returns the endpoints in the order in which a pull asks them, and why. With try it asks those
// that are not skipped what the reference means, as a pull does, and pulls nothing: the error is that of
// Resolve. Without try the error is nil, unless the configuration of the endpoints cannot be used.
func (r *Repository) Explain(ctx context.Context, try bool) ([]image.Endpoint, error) {
	var all []image.Endpoint
	if r.sources.fault != nil {
		for _, e := range r.endpoints {
			shown := r.explain(e)
			shown.Skipped = "not asked: the configuration of " + r.domain + " cannot be used, so that every pull fails"
			all = append(all, shown)
		}
		return all, r.sources.fault
	}
	asked := map[*endpoint]bool{}
	for _, e := range r.arrange(r.needed(), func(name string) bool { return !r.health.isBehind(name) }) {
		asked[e] = true
		all = append(all, r.explain(e))
	}
	for _, e := range r.endpoints {
		if asked[e] {
			continue
		}
		shown := r.explain(e)
		shown.Skipped = "not asked what the tag means: its capabilities lack resolve"
		switch {
		case !e.Capabilities.Has(docker.HostCapabilityPull):
			shown.Skipped = "not asked: its capabilities lack pull"
		case !r.byDigest:
			shown.Skipped += "; asked for manifests and blobs by digest"
		}
		all = append(all, shown)
	}
	if !try {
		return all, nil
	}
	var faults []fault
	found := false
	for i := range all {
		if all[i].Skipped != "" {
			continue
		}
		if e, err := r.try(ctx, &all[i]); err != nil {
			faults = append(faults, fault{e, err})
		} else {
			found = true
		}
	}
	if found {
		return all, nil
	}
	return all, r.unresolved(faults)
}

// explain describes one endpoint.
func (r *Repository) explain(e *endpoint) image.Endpoint {
	where, tls, problem := r.sources.at(e.index)
	shown := image.Endpoint{URL: e.name, Mirror: e.index < len(r.endpoints)-1, Source: where, Problem: problem, TLS: tls, Health: r.health.describe(e.name)}
	if where == "" {
		shown.Source = "default of the registry's name: no directory has a configuration for " + r.domain
	}
	if r.isUnverified(e) {
		shown.TLS = append([]string{"the certificate is not verified: the registry is on the loopback address"}, shown.TLS...)
	}
	if len(shown.TLS) == 0 {
		shown.TLS = []string{"verified with the authorities of the host"}
	}
	if e.Scheme == "http" {
		shown.TLS = []string{"none: plain http"}
	}
	if e.mayFallBack() {
		shown.TLS = append(shown.TLS, "plain http if the server has no TLS")
	}
	for _, c := range []struct {
		name string
		is   docker.HostCapabilities
	}{{"pull", docker.HostCapabilityPull}, {"resolve", docker.HostCapabilityResolve}, {"push", docker.HostCapabilityPush}} {
		if e.Capabilities.Has(c.is) {
			shown.Capabilities = append(shown.Capabilities, c.name)
		}
	}
	shown.Credentials = r.creds.describe(e, r.sources.place(e.index))
	return shown
}

// isUnverified reports whether containerd's reader does not verify the certificate of an endpoint for its address: a registry on
// the loopback address of which no file has a URL.
func (r *Repository) isUnverified(e *endpoint) bool {
	all := r.sources.endpoints()
	written := e.index < len(all) && all[e.index].URL != ""
	return !written && e.index == len(r.endpoints)-1 && e.Scheme == "https" && docker.IsLocalhost(e.Host)
}

// mayFallBack reports whether an endpoint is asked by http if it does not have TLS: containerd's reader then has another
// transport around berth's.
func (e *endpoint) mayFallBack() bool {
	if e.Client == nil {
		return false
	}
	_, ok := e.Client.Transport.(guarded)
	return !ok
}

// describe says whose credentials an endpoint gets, and no secret.
func (c *credentials) describe(e *endpoint, where string) string {
	header := ""
	if e.hasAuthorization() {
		header = "the header Authorization of " + where
	}
	found := ""
	switch key := c.ofNode(e.Host); {
	case c.ofRequest(e.Host):
		found = "those of this request"
	case key != nil:
		found = key.String()
	case c.isHome(e.Host):
		found = "those of the CRI request, if it has any for " + c.domain
	}
	switch {
	case header != "" && found != "":
		return header + "; if that is refused, " + found
	case header != "" || found != "":
		return header + found
	}
	return "none: those of a request are for " + c.domain + " only, and no credential file names this host"
}

// try asks an endpoint what the reference means.
func (r *Repository) try(ctx context.Context, shown *image.Endpoint) (*endpoint, error) {
	i := slices.IndexFunc(r.endpoints, func(e *endpoint) bool { return e.name == shown.URL })
	began := time.Now()
	desc, err := r.resolveAt(ctx, r.endpoints[i])
	shown.Attempt = &image.Attempt{Took: time.Since(began), Digest: desc.Digest, MediaType: desc.MediaType}
	if err != nil {
		shown.Attempt.Fault = errs.Message(r.creds.scrub(err))
	}
	return r.endpoints[i], err
}
