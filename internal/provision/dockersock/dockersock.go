// Package dockersock is provisioning's client of the Docker Engine API.
package dockersock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Socket is the API's default socket.
const Socket = "/run/docker.sock"

// The timeouts of one request, and of the stop of one container: the engine waits for the
// container's grace period, then kills.
const (
	callTimeout = 10 * time.Second
	stopTimeout = 2 * time.Minute
)

// maxAnswer bounds what is read of an answer.
const maxAnswer = 16 << 20

// Container is a running container.
type Container struct{ ID, Name string }

// Client is a client of a Docker Engine that listens on a socket.
type Client struct{ client *http.Client }

// New does not connect, so it does not start an engine that a socket unit starts. Close the client
// after use.
func New(socket string) *Client {
	return &Client{&http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}}
}

// Close ends the connections.
func (e *Client) Close() { e.client.CloseIdleConnections() }

// Ping returns an error if the engine does not answer.
func (e *Client) Ping(ctx context.Context) error {
	_, err := e.call(ctx, http.MethodGet, "/_ping", callTimeout)
	return err
}

// Running lists the containers that run.
func (e *Client) Running(ctx context.Context) ([]Container, error) {
	data, err := e.call(ctx, http.MethodGet, "/containers/json", callTimeout)
	if err != nil {
		return nil, fmt.Errorf("cannot list docker's containers: %w", err)
	}
	var said []struct {
		ID    string `json:"Id"`
		Names []string
	}
	if err := json.Unmarshal(data, &said); err != nil {
		return nil, fmt.Errorf("cannot list docker's containers: %w: %w", errs.Unavailable, err)
	}
	list := make([]Container, len(said))
	for i, c := range said {
		list[i] = Container{ID: c.ID, Name: c.ID[:min(len(c.ID), 12)]}
		if len(c.Names) > 0 {
			list[i].Name = strings.TrimPrefix(c.Names[0], "/")
		}
	}
	return list, nil
}

// Verb is what can be done to a container.
type Verb string

// The verbs. Stop waits for the container's grace period, then kills.
const (
	Stop  Verb = "stop"
	Start Verb = "start"
)

// Running lists the running containers of the engine at the default socket.
func Running(ctx context.Context) ([]Container, error) {
	e := New(Socket)
	defer e.Close()
	return e.Running(ctx)
}

// Each applies a verb to containers of the engine at the default socket.
func Each(ctx context.Context, verb Verb, list []Container) error {
	e := New(Socket)
	defer e.Close()
	return e.Each(ctx, verb, list)
}

// Each applies a verb to containers, one after the other. It tries all. A container that is gone,
// or already in the wanted state, is not an error.
func (e *Client) Each(ctx context.Context, verb Verb, list []Container) error {
	var failed []error
	for _, c := range list {
		_, err := e.call(ctx, http.MethodPost, "/containers/"+c.ID+"/"+string(verb), stopTimeout)
		if errs.IgnoreNotFound(err) != nil {
			failed = append(failed, fmt.Errorf("cannot %s docker's container %s: %w", verb, c.Name, err))
		}
	}
	return errors.Join(failed...)
}

// call makes one request. Status 304 means that the container is already in the wanted state.
func (e *Client) call(ctx context.Context, method, path string, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("docker does not answer: %w: %w", errs.Unavailable, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("docker says %s: %w", message(data), errs.NotFound)
	case resp.StatusCode >= http.StatusBadRequest:
		return nil, fmt.Errorf("docker says %s: %s: %w", resp.Status, message(data), errs.Unavailable)
	case err != nil:
		return nil, fmt.Errorf("docker's answer breaks off: %w: %w", errs.Unavailable, err)
	}
	return data, nil
}

// message is the message of an error response.
func message(data []byte) string {
	var said struct{ Message string }
	if json.Unmarshal(data, &said) == nil && said.Message != "" {
		return said.Message
	}
	return strings.TrimSpace(string(data[:min(len(data), 1<<10)]))
}
