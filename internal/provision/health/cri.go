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

// sandboxTimeout bounds the creation of the test sandbox, and its removal.
const sandboxTimeout = 30 * time.Second

// Network is the network of the test sandbox.
type Network int

// The networks.
const (
	// HostNetwork is for a node whose pods do not get their network from the runtime.
	HostNetwork Network = iota
	// ClusterNetwork is the pods' own network, if the runtime reports that it is ready. Berth did
	// not configure it, and it may need programs that start later. If it fails and the host's
	// network works, that is a warning.
	ClusterNetwork
	// PodNetwork is the pods' own network, if the runtime reports that it is ready. It must work.
	PodNetwork
)

// CRI checks that a runtime is ready, and that it can start and remove a sandbox.
type CRI struct {
	// Endpoint is "unix:///…".
	Endpoint string
	// Unit has the log.
	Unit string
	// SandboxImage is the image that the runtime needs for a sandbox; empty for none. If the node
	// does not have it yet, the probe starts no sandbox: that would wait for a registry.
	SandboxImage string
	// Network is that of the sandbox.
	Network Network
	// CgroupParent is the slice of the sandbox, with the systemd driver: containerd starts no
	// sandbox without one. Empty with cgroupfs.
	CgroupParent string
}

// Name is "the runtime on ENDPOINT starts a sandbox".
func (c CRI) Name() string { return "the runtime on " + c.Endpoint + " starts a sandbox" }

// Run asks for Status and runs the sandbox.
func (c CRI) Run(ctx context.Context, host provision.Host) error {
	conn, err := crisock.Dial(c.Endpoint)
	if err != nil {
		return err
	}
	defer conn.Close()
	networkReady, err := c.ready(ctx, conn)
	if crisock.Unserved(err) {
		err = crisock.WhyUnserved(ctx, host, c.Unit)
	}
	if err != nil {
		return c.failed(err)
	}
	if c.SandboxImage != "" {
		has, err := crisock.HasImage(ctx, c.Endpoint, c.SandboxImage)
		if err != nil {
			return c.failed(err)
		}
		if !has {
			provision.Warn(ctx, "image %s is not on the node yet: no sandbox was tried", c.SandboxImage)
			return nil
		}
	}
	if c.Network == HostNetwork || !networkReady {
		if c.Network != HostNetwork {
			provision.Warn(ctx, "the pods' network is not ready: the sandbox was tried with the host's")
		}
		return c.failed(c.sandbox(ctx, conn, runtimeapi.NamespaceMode_NODE))
	}
	if err = c.sandbox(ctx, conn, runtimeapi.NamespaceMode_POD); err == nil || c.Network == PodNetwork {
		return c.failed(err)
	}
	if hostErr := c.sandbox(ctx, conn, runtimeapi.NamespaceMode_NODE); hostErr != nil {
		return c.failed(hostErr)
	}
	provision.Warn(ctx, "a sandbox starts with the host's network, and not with the pods': %v", err)
	return nil
}

func (c CRI) failed(err error) error {
	if c.Unit == "" || err == nil {
		return err
	}
	return fmt.Errorf("%w; its log: journalctl -u %s", err, c.Unit)
}

// ready requires the condition RuntimeReady, and reports whether pods have a network.
func (c CRI) ready(ctx context.Context, conn *crisock.Conn) (network bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return false, fmt.Errorf("it does not answer: %w: %w", errs.Unavailable, err)
	}
	for _, condition := range resp.GetStatus().GetConditions() {
		if condition.GetType() == runtimeapi.NetworkReady {
			network = condition.GetStatus()
		}
	}
	for _, condition := range resp.GetStatus().GetConditions() {
		if condition.GetType() != runtimeapi.RuntimeReady {
			continue
		}
		if condition.GetStatus() {
			return network, nil
		}
		return false, fmt.Errorf("it is not ready: %s: %s: %w", condition.GetReason(), condition.GetMessage(), errs.Unavailable)
	}
	return false, fmt.Errorf("it does not say whether it is ready: %w", errs.Unavailable)
}

// sandbox runs a sandbox, and always stops and removes it.
func (c CRI) sandbox(ctx context.Context, conn *crisock.Conn, network runtimeapi.NamespaceMode) (err error) {
	id := uuid.NewString()
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "berth-node-probe", Namespace: "berth-node", Uid: id},
		Labels:   map[string]string{"berth.run/probe": id},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: c.CgroupParent,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Network: network, Pid: runtimeapi.NamespaceMode_CONTAINER},
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
