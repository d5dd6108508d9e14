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

// etcd is the one of this control plane, asked by JSON: a node has no client of it.
type etcd struct {
	server string
	client *http.Client
	pause  time.Duration
}

// etcdTime bounds the removal of a member. A cluster that has lost a member a moment ago refuses
// until it has settled.
const etcdTime = time.Minute

// ForgetMember takes another control plane out of etcd's cluster: the member of its name, or one
// that has none yet and one of its addresses. An absent one is no error.
func ForgetMember(ctx context.Context, name string, addresses []string) error {
	e, err := localEtcd(node{"/"})
	if err != nil {
		return fmt.Errorf("cannot speak with etcd: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, etcdTime)
	defer cancel()
	if err := e.forget(ctx, name, addresses); err != nil {
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

// member is what is read of one. Its ID is a number that JSON has no room for.
type member struct {
	ID       string   `json:"ID"`
	Name     string   `json:"name"`
	PeerURLs []string `json:"peerURLs"`
}

// forget tries until the member is gone, as long as etcd says that it may succeed later.
func (e *etcd) forget(ctx context.Context, name string, addresses []string) error {
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
	if err := e.ask(ctx, "/v3/cluster/member/list", map[string]any{}, &list); err != nil {
		return err
	}
	for _, m := range list.Members {
		if m.Name == name || m.Name == "" && m.at(addresses) {
			if err := e.ask(ctx, "/v3/cluster/member/remove", map[string]any{"ID": m.ID}, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// at reports whether a member is at one of the addresses.
func (m member) at(addresses []string) bool {
	return slices.ContainsFunc(m.PeerURLs, func(peer string) bool {
		u, err := url.Parse(peer)
		return err == nil && slices.Contains(addresses, u.Hostname())
	})
}

// ask calls a method. What etcd cannot do now is errs.Unavailable.
func (e *etcd) ask(ctx context.Context, method string, what, into any) error {
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
		return nil // somebody else was faster
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
