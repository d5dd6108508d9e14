package handler

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
)

// maxRedirects is how far a probe is sent from one path to another.
const maxRedirects = 10

// doHTTP makes the request of a probe or a hook. Certificates are not checked, and a
// redirect is followed on the same host only, as by a kubelet.
func (t *Target) doHTTP(ctx context.Context, get *corev1.HTTPGetAction, agent string) (*http.Response, error) {
	port, err := podspec.Port(t.Container, get.Port)
	if err != nil {
		return nil, err
	}
	path, err := url.Parse(get.Path)
	if err != nil {
		return nil, fmt.Errorf("cannot use path %q: %w", get.Path, err)
	}
	u := (&url.URL{Scheme: strings.ToLower(string(get.Scheme)), Host: t.address(get.Host, port), Path: "/"}).ResolveReference(path)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("cannot make the request: %w", err)
	}
	req.Header = headers(get, agent)
	req.Host = req.Header.Get("Host")
	transport := &http.Transport{
		DisableKeepAlives:  true,
		DisableCompression: true, // it would add a header
		Proxy:              nil,
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
	}
	defer transport.CloseIdleConnections()
	return (&http.Client{
		Transport: transport,
		CheckRedirect: func(next *http.Request, before []*http.Request) error {
			if next.URL.Hostname() != before[0].URL.Hostname() {
				return http.ErrUseLastResponse
			}
			if len(before) >= maxRedirects {
				return fmt.Errorf("there are more than %d redirects", maxRedirects)
			}
			return nil
		},
	}).Do(req)
}

// headers are the file's. Those that the file does not have are as a kubelet has them; an empty Accept is none.
func headers(get *corev1.HTTPGetAction, agent string) http.Header {
	all := http.Header{}
	for _, h := range get.HTTPHeaders {
		all.Add(h.Name, h.Value)
	}
	if _, there := all["User-Agent"]; !there {
		all.Set("User-Agent", agent)
	}
	switch accept, there := all["Accept"]; {
	case !there:
		all.Set("Accept", "*/*")
	case accept[0] == "":
		all.Del("Accept")
	}
	return all
}
