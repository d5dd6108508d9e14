package taskapi

import (
	"context"
	"maps"
	"slices"
	"strings"
)

// sandboxService is the sandbox API, which a shim may serve beside the task API.
const sandboxService = "containerd.runtime.sandbox.v1.Sandbox"

// SandboxReady is the state of a sandbox that runs. It has the name of CRI's.
const SandboxReady = "SANDBOX_READY"

// Sandbox is what a shim makes a sandbox of. It has no root file system.
type Sandbox struct {
	ID string
	// Bundle is the directory in which the shim was started.
	Bundle string
	// Config is an Any: the PodSandboxConfig of CRI.
	Config Message
	// NetNS is the path of the network namespace, "" for the host's.
	NetNS       string
	Annotations map[string]string
}

// SandboxState is what a shim says of a sandbox.
type SandboxState struct {
	ID    string
	Pid   int
	State string
}

// CreateSandbox prepares a sandbox. A shim has one.
func (c *Client) CreateSandbox(ctx context.Context, s *Sandbox) error {
	request := Message{}.Text(1, s.ID).Text(2, s.Bundle).Embed(4, s.Config).Text(5, s.NetNS)
	for _, key := range slices.Sorted(maps.Keys(s.Annotations)) {
		request = request.Embed(6, Message{}.Text(1, key).Text(2, s.Annotations[key]))
	}
	_, err := c.callService(ctx, sandboxService, "CreateSandbox", request)
	return err
}

// StartSandbox starts a sandbox, and returns the pid of its process, 0 when it has none.
func (c *Client) StartSandbox(ctx context.Context, id string) (pid int, err error) {
	answer, err := c.callService(ctx, sandboxService, "StartSandbox", Message{}.Text(1, id))
	if err != nil {
		return 0, err
	}
	err = answer.decode(func(f Field) {
		if f.ID == 1 {
			pid = number(f)
		}
	})
	return pid, err
}

// SandboxState returns the state of a sandbox.
func (c *Client) SandboxState(ctx context.Context, id string) (*SandboxState, error) {
	answer, err := c.callService(ctx, sandboxService, "SandboxStatus", Message{}.Text(1, id))
	if err != nil {
		return nil, err
	}
	s := &SandboxState{}
	return s, answer.decode(func(f Field) {
		switch f.ID {
		case 1:
			s.ID = strings.ToValidUTF8(f.Text(), "?")
		case 2:
			s.Pid = number(f)
		case 3:
			s.State = strings.ToValidUTF8(f.Text(), "?")
		}
	})
}

// WaitSandbox returns when a sandbox has ended.
func (c *Client) WaitSandbox(ctx context.Context, id string) (*Exit, error) {
	answer, err := c.callService(ctx, sandboxService, "WaitSandbox", Message{}.Text(1, id))
	if err != nil {
		return nil, err
	}
	return decodeExit(answer, 1)
}

// StopSandbox ends a sandbox, and all containers in it.
func (c *Client) StopSandbox(ctx context.Context, id string) error {
	_, err := c.callService(ctx, sandboxService, "StopSandbox", Message{}.Text(1, id))
	return err
}

// ShutdownSandbox ends the shim.
func (c *Client) ShutdownSandbox(ctx context.Context, id string) error {
	_, err := c.callService(ctx, sandboxService, "ShutdownSandbox", Message{}.Text(1, id))
	return err
}
