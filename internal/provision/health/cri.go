package health

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
)

// sandboxTimeout bounds the making of the test sandbox, and its end.
const sandboxTimeout = 30 * time.Second

// CRI wants that a runtime is ready, and that a sandbox starts on it and goes again.
// The sandbox has the host's network: the cluster's own may not be there yet.
type CRI struct {
	// Endpoint is "unix:///…".
	Endpoint string
	// Unit has the log.
	Unit string
	// SandboxImage is what the runtime needs for a sandbox; empty for none. Where the
	// node does not have it yet, the sandbox is not tried: it would wait for a registry.
	SandboxImage string
	// CgroupParent is the slice of the sandbox, with the systemd driver: containerd
	// starts none without. Empty with cgroupfs.
	CgroupParent string
}

// Name is "the runtime on ENDPOINT starts a sandbox".
func (c CRI) Name() string { return "the runtime on " + c.Endpoint + " starts a sandbox" }

// Run asks for Status and runs the sandbox.
func (c CRI) Run(ctx context.Context, _ provision.Host) error {
	conn, err := crisock.Dial(c.Endpoint)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := c.ready(ctx, conn); err != nil {
		return c.failed(err)
	}
	if c.SandboxImage != "" {
		has, err := crisock.HasImage(ctx, c.Endpoint, c.SandboxImage)
		if err != nil {
			return c.failed(err)
		}
		if !has {
			provision.Note(ctx, "image %s is not on the node yet: no sandbox was tried", c.SandboxImage)
			return nil
		}
	}
	if err := c.sandbox(ctx, conn); err != nil {
		return c.failed(err)
	}
	return nil
}

func (c CRI) failed(err error) error {
	if c.Unit == "" {
		return err
	}
	return fmt.Errorf("%w; its log: journalctl -u %s", err, c.Unit)
}

// ready wants the condition RuntimeReady.
func (c CRI) ready(ctx context.Context, conn *crisock.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return fmt.Errorf("it does not answer: %w: %w", errs.Unavailable, err)
	}
	for _, condition := range resp.GetStatus().GetConditions() {
		if condition.GetType() != runtimeapi.RuntimeReady {
			continue
		}
		if condition.GetStatus() {
			return nil
		}
		return fmt.Errorf("it is not ready: %s: %s: %w", condition.GetReason(), condition.GetMessage(), errs.Unavailable)
	}
	return fmt.Errorf("it does not say whether it is ready: %w", errs.Unavailable)
}

// sandbox runs a sandbox, and always stops and removes what may be left of it.
func (c CRI) sandbox(ctx context.Context, conn *crisock.Conn) (err error) {
	id := uuid.NewString()
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "berth-node-probe", Namespace: "berth-node", Uid: id},
		Labels:   map[string]string{"berth.run/probe": id},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: c.CgroupParent,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_CONTAINER},
			},
		},
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sandboxTimeout)
		defer cancel()
		err = errors.Join(err, remove(ctx, conn, id))
	}()
	ctx, cancel := context.WithTimeout(ctx, sandboxTimeout)
	defer cancel()
	if _, err := conn.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config}); err != nil {
		return fmt.Errorf("a test sandbox does not start: %w: %w", errs.Unavailable, err)
	}
	return nil
}

// remove stops and removes the sandboxes of one probe.
func remove(ctx context.Context, conn *crisock.Conn, id string) error {
	list, err := conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"berth.run/probe": id}},
	})
	if err != nil {
		return fmt.Errorf("cannot look for the test sandbox: %w", err)
	}
	for _, s := range list.GetItems() {
		if _, err := conn.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.GetId()}); err != nil {
			return fmt.Errorf("cannot stop the test sandbox: %w", err)
		}
		if _, err := conn.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.GetId()}); err != nil {
			return fmt.Errorf("cannot remove the test sandbox: %w", err)
		}
	}
	return nil
}
