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
	req.Header.Set("User-Agent", agent)
	req.Header.Set("Accept", "*/*")
	for _, h := range get.HTTPHeaders {
		if strings.EqualFold(h.Name, "Host") {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		Proxy:             nil,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
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
