// Package handover has the tasks that move a running node from one container runtime to another:
// they copy images, stop the pods in the old runtime, and point the kubelet at the new one. They
// stay in the target as long as the machine names the replaced runtime, and find nothing to do once
// the handover is done.
package handover

import (
	"context"
	"errors"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/crisock"
)

// Runtime is one side of a handover.
type Runtime struct {
	// Name is berth, containerd, crio, cri-dockerd or docker.
	Name string
	// Engine is berth's engine: native for berth, docker for docker, whose CRI berth serves. It
	// tells the two apart, which have one socket. Empty for the others.
	Engine string
	// Endpoint is its CRI socket, "unix:///…".
	Endpoint string
	// Content is the directory of its blobs, by algorithm and hash; empty when it keeps
	// none (crio).
	Content string
	// Binary is its client, which lists and loads images: berth or ctr.
	Binary string
}

// callTimeout bounds one call to a runtime that may not be running.
const callTimeout = 5 * time.Second

// connect requests a runtime's version. errs.Unavailable: it does not answer.
func connect(ctx context.Context, endpoint string) (*crisock.Conn, error) {
	conn, err := crisock.Dial(endpoint)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := conn.Runtime.Version(ctx, &runtimeapi.VersionRequest{}); err != nil {
		conn.Close()
		return nil, fmt.Errorf("%s does not answer: %w: %w", endpoint, errs.Unavailable, err)
	}
	return conn, nil
}

// answers reports whether a runtime answers.
func answers(ctx context.Context, endpoint string) (bool, error) {
	conn, err := connect(ctx, endpoint)
	if errors.Is(err, errs.Unavailable) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, conn.Close()
}
