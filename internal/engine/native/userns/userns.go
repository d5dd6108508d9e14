// Package userns makes the user namespaces of pods.
//
// A sandbox's user namespace is made first and owns all other namespaces of the sandbox, so
// that its root may configure them. Files that the engine makes for the pod belong to that
// root on the host. Layers of images are mapped (package image), and volumes where the
// request says so.
package userns

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// Maker makes user namespaces. It is safe for concurrent use.
type Maker struct {
	program string
	probe   func() error

	mu    sync.Mutex // guards what follows, and is held while the host is probed
	at    time.Time  // of the last probe, zero for none
	fault error      // what the last probe found
}

// faultAge is how long a fault is kept. It may be one of the moment: a full disk, a limit of namespaces or mounts that is
// reached, or that an operator raises.
const faultAge = 30 * time.Second

// NewMaker returns a Maker. program is the static program that holds a namespace while it is
// made, "" for none. canMap reports whether images can be mapped into a namespace.
func NewMaker(program string, canMap func(userns string) error) *Maker {
	m := &Maker{program: program}
	m.probe = func() error { return m.probeHost(canMap) }
	return m
}

// Supported returns why pods cannot have user namespaces here, nil if they can. The first
// call makes one, and a root filesystem for it; later ones repeat that while it fails.
func (m *Maker) Supported() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at.IsZero() || m.fault != nil && time.Since(m.at) >= faultAge {
		m.fault = m.probe()
		m.at = time.Now()
	}
	return m.fault
}

// Namespace describes the user namespace of a sandbox, which is pinned at pin. It is nil
// when the sandbox shares the host's. Kind Unsupported where pods cannot have one.
func (m *Maker) Namespace(config *runtimeapi.PodSandboxConfig, pin string) (*sysns.UserNamespace, error) {
	requested := request.UserNamespaceOf(config)
	if requested == nil {
		return nil, nil //nolint:nilnil // most sandboxes share the host's
	}
	if err := m.Supported(); err != nil {
		return nil, fmt.Errorf("config.linux.security_context.namespace_options.userns_options: user namespaces are not supported here: %w", err)
	}
	return m.holder(pin, requested.UIDs, requested.GIDs), nil
}

func (m *Maker) holder(pin string, uids, gids request.IDMapping) *sysns.UserNamespace {
	ids := func(m request.IDMapping) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{HostID: int(m.Host), Size: int(m.Length)}}
	}
	return &sysns.UserNamespace{Pin: pin, UIDs: ids(uids), GIDs: ids(gids), Program: m.program, Args: []string{"hold"}}
}

func (m *Maker) probeHost(canMap func(userns string) error) error {
	if m.program == "" {
		return fmt.Errorf("user namespaces need a program that holds them, and none is configured: %w", errs.Unsupported)
	}
	// Any mapping serves. This one exists in every user namespace.
	root := request.IDMapping{Length: 1}
	return sysns.WithUserNamespace(*m.holder("", root, root), canMap)
}

// Owner is the user and group of the host that are the pod's root.
func Owner(config *runtimeapi.PodSandboxConfig) sysfd.Owner {
	if n := request.UserNamespaceOf(config); n != nil {
		return sysfd.Owner{UID: int(n.UIDs.Host), GID: int(n.GIDs.Host)}
	}
	return sysfd.Owner{}
}

// ImageMap maps the ids of root filesystems for a sandbox in the user namespace at path. It
// is nil for "", the host's.
func ImageMap(config *runtimeapi.PodSandboxConfig, path string) *image.UserMap {
	if path == "" {
		return nil
	}
	owner := Owner(config)
	return &image.UserMap{UserNS: path, UID: owner.UID, GID: owner.GID}
}
