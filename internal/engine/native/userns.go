package native

import (
	"fmt"
	"syscall"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// A sandbox's user namespace is made first and owns all others that the sandbox has,
// so that its root may configure them. Files that the engine makes for the pod
// belong to that root on the host; layers of images are mapped (package image), and
// volumes where the request says so.

// userNamespace is what the sandbox's user namespace is made from, nil when it
// shares the host's.
func (e *Engine) userNamespace(config *runtimeapi.PodSandboxConfig, pin string) (*sysns.UserNamespace, error) {
	asked := request.UserNamespaceOf(config)
	if asked == nil {
		return nil, nil //nolint:nilnil // most sandboxes share the host's
	}
	if err := e.mapping(); err != nil {
		return nil, fmt.Errorf("config.linux.security_context.namespace_options.userns_options: user namespaces are not supported here: %w", err)
	}
	return e.holder(pin, asked.UIDs, asked.GIDs), nil
}

func (e *Engine) holder(pin string, uids, gids request.IDMapping) *sysns.UserNamespace {
	ids := func(m request.IDMapping) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{HostID: int(m.Host), Size: int(m.Length)}}
	}
	return &sysns.UserNamespace{Pin: pin, UIDs: ids(uids), GIDs: ids(gids), Program: e.cfg.PodInit, Args: []string{"hold"}}
}

// probeUserNamespaces makes one, and a root filesystem for it.
func (e *Engine) probeUserNamespaces() error {
	if e.cfg.PodInit == "" {
		return fmt.Errorf("user namespaces need a program that holds them, and none is configured: %w", errs.Unsupported)
	}
	// Any mapping would do; this one exists wherever we run.
	root := request.IDMapping{Length: 1}
	return sysns.WithUserNamespace(*e.holder("", root, root), e.cfg.Rootfs.CanMap)
}

// ownerOf is the host's number of the pod's root.
func ownerOf(config *runtimeapi.PodSandboxConfig) sysfd.Owner {
	if n := request.UserNamespaceOf(config); n != nil {
		return sysfd.Owner{UID: int(n.UIDs.Host), GID: int(n.GIDs.Host)}
	}
	return sysfd.Owner{}
}

// userMap maps the ids of root filesystems for the sandbox, nil where they stay as they are.
func userMap(spec *engine.SandboxSpec, sb *sandbox) *image.UserMap {
	if sb.UserNS == "" {
		return nil
	}
	owner := ownerOf(spec.Config)
	return &image.UserMap{UserNS: sb.UserNS, UID: owner.UID, GID: owner.GID}
}
