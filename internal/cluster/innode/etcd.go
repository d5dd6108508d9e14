package innode

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// etcdDir has the certificates of etcd and its clients on a control plane.
const etcdDir = "/etc/kubernetes/pki/etcd/"

// etcd is a client of this control plane's etcd, over JSON: a node has no etcdctl.
type etcd struct {
	server string
	client *http.Client
	pause  time.Duration
}

// etcdTime bounds the removal of a member. A cluster that has just lost a member refuses until it
// has settled.
const etcdTime = time.Minute

// RemoveMember removes another control plane from etcd's cluster: the member of its name, or one
// without a name at one of its addresses. An absent member is not an error.
func RemoveMember(ctx context.Context, name string, addresses []string) error {
	e, err := localEtcd(node{"/"})
	if err != nil {
		return fmt.Errorf("cannot speak with etcd: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, etcdTime)
	defer cancel()
	if err := e.removeMember(ctx, name, addresses); err != nil {
		return fmt.Errorf("cannot remove %s from etcd: %w", name, err)
	}
	return nil
}

func localEtcd(n node) (*etcd, error) {
	pair, err := tls.LoadX509KeyPair(n.path(etcdDir+"healthcheck-client.crt"), n.path(etcdDir+"healthcheck-client.key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(n.path(etcdDir + "ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%sca.crt has no certificate: %w", etcdDir, errs.Invalid)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, MinVersion: tls.VersionTLS12}
	return &etcd{"https://localhost:2379", &http.Client{Transport: &http.Transport{TLSClientConfig: config}}, time.Second}, nil
}

// member has the fields that are read of a member. Its ID is a number that is too large for JSON.
type member struct {
	ID       string   `json:"ID"`
	Name     string   `json:"name"`
	PeerURLs []string `json:"peerURLs"`
}

// removeMember retries until the member is gone, as long as etcd says that it may succeed later.
func (e *etcd) removeMember(ctx context.Context, name string, addresses []string) error {
	for {
		err := e.remove(ctx, name, addresses)
		if err == nil || !errors.Is(err, errs.Unavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(e.pause):
		}
	}
}

func (e *etcd) remove(ctx context.Context, name string, addresses []string) error {
	var list struct {
		Members []member `json:"members"`
	}
	if err := e.call(ctx, "/v3/cluster/member/list", map[string]any{}, &list); err != nil {
		return err
	}
	for _, m := range list.Members {
		if m.Name == name || m.Name == "" && m.at(addresses) {
			if err := e.call(ctx, "/v3/cluster/member/remove", map[string]any{"ID": m.ID}, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// at reports whether a member has one of the addresses.
func (m member) at(addresses []string) bool {
	return slices.ContainsFunc(m.PeerURLs, func(peer string) bool {
		u, err := url.Parse(peer)
		return err == nil && slices.Contains(addresses, u.Hostname())
	})
}

// call calls a method. What etcd cannot do now is errs.Unavailable.
func (e *etcd) call(ctx context.Context, method string, what, into any) error {
	body, err := json.Marshal(what)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.server+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := e.client.Do(request)
	if err != nil {
		return fmt.Errorf("etcd does not answer: %w: %w", errs.Unavailable, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("etcd does not answer: %w: %w", errs.Unavailable, err)
	}
	switch {
	case answer.StatusCode == http.StatusNotFound:
		return nil // another process removed it
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("etcd answers %s: %s: %w", answer.Status, strings.TrimSpace(string(text)), errs.Unavailable)
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("cannot read what etcd says: %w", err)
	}
	return nil
}
