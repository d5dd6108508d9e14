// Package crisock is provisioning's CRI client. It works with any runtime, and has no special case
// for berth.
package crisock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// callTimeout bounds one call.
const callTimeout = 10 * time.Second

// Conn is a connection to a runtime. Close it.
type Conn struct {
	Runtime runtimeapi.RuntimeServiceClient
	Images  runtimeapi.ImageServiceClient
	conn    *grpc.ClientConn
}

// Dial connects to an endpoint, "unix:///run/containerd/containerd.sock" or a path.
// It does not wait for the runtime.
func Dial(endpoint string) (*Conn, error) {
	if strings.HasPrefix(endpoint, "/") {
		endpoint = "unix://" + endpoint
	}
	if !strings.HasPrefix(endpoint, "unix:///") {
		return nil, fmt.Errorf("CRI endpoint %q is not unix:///…: %w", endpoint, errs.Invalid)
	}
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", endpoint, err)
	}
	return &Conn{
		Runtime: runtimeapi.NewRuntimeServiceClient(conn),
		Images:  runtimeapi.NewImageServiceClient(conn),
		conn:    conn,
	}, nil
}

// Path returns the path of an endpoint, so that endpoints can be compared: without "unix://", and
// without "/var" before "/run".
func Path(endpoint string) string {
	return strings.TrimPrefix(strings.TrimPrefix(endpoint, "unix://"), "/var")
}

// Close ends the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// HasImage reports whether the runtime at endpoint knows an image.
func HasImage(ctx context.Context, endpoint, ref string) (bool, error) {
	c, err := Dial(endpoint)
	if err != nil {
		return false, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if err != nil {
		return false, fmt.Errorf("cannot look up image %s at %s: %w: %w", ref, endpoint, errs.Unavailable, err)
	}
	return resp.GetImage() != nil, nil
}

// pullTimeout bounds the pull of a sandbox's image, which is small.
const pullTimeout = 30 * time.Second

// EnsureImage pulls an image that the runtime at endpoint does not have.
func EnsureImage(ctx context.Context, endpoint, ref string) error {
	has, err := HasImage(ctx, endpoint, ref)
	if err != nil || has {
		return err
	}
	c, err := Dial(endpoint)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	if _, err := c.Images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		return fmt.Errorf("image %s is not on the node and cannot be pulled: %w: %w", ref, errs.NotFound, err)
	}
	return nil
}

// RemoveImage removes an image from the runtime at endpoint.
func RemoveImage(ctx context.Context, endpoint, ref string) error {
	c, err := Dial(endpoint)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := c.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		return fmt.Errorf("cannot remove image %s from %s: %w", ref, endpoint, err)
	}
	return nil
}

// Sandboxes lists the ready sandboxes of the runtime at endpoint, "namespace/name".
func Sandboxes(ctx context.Context, endpoint string) ([]string, error) {
	c, err := Dial(endpoint)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	list, err := c.list(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range list {
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			names = append(names, s.GetMetadata().GetNamespace()+"/"+s.GetMetadata().GetName())
		}
	}
	return names, nil
}

func (c *Conn) list(ctx context.Context) ([]*runtimeapi.PodSandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("cannot list sandboxes: %w: %w", errs.Unavailable, err)
	}
	return resp.GetItems(), nil
}

// RemoveSandboxes stops and removes all sandboxes of the runtime at endpoint.
func RemoveSandboxes(ctx context.Context, endpoint string) error {
	c, err := Dial(endpoint)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.list(ctx)
	if err != nil {
		return err
	}
	for _, s := range list {
		if err := c.remove(ctx, s.GetId()); err != nil {
			return err
		}
	}
	return nil
}

// removeTimeout bounds the end of one sandbox with its containers.
const removeTimeout = 2 * time.Minute

func (c *Conn) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if _, err := c.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("cannot stop sandbox %s: %w", id, err)
	}
	if _, err := c.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("cannot remove sandbox %s: %w", id, err)
	}
	return nil
}
