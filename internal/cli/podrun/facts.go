package podrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podrun/host"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// DefaultClaimBase holds a directory for each claim, DefaultSeccompDir the profiles of
// relative paths, where a kubelet has them.
const (
	DefaultClaimBase  = "/var/lib/berth-claims"
	DefaultSeccompDir = "/var/lib/kubelet/seccomp"
)

// maxVariablesFile bounds what is read of a file that a container has written, in bytes.
const maxVariablesFile = 1 << 20

// setHostFacts finds the facts that a pod's configuration needs.
func (k *podRun) setHostFacts() {
	found := host.Gather(k.VolumeBase)
	k.facts.HostIPs, k.facts.NodeName, k.facts.Capacity = found.IPs, found.Name, found.Capacity
	k.facts.HostHosts, k.facts.HostDNS, k.facts.HostDNSBehindStub = found.Hosts, found.DNS, found.DNSBehindStub
	k.facts.ReadVolume = k.readVolume
}

// readVolume reads a file that a container wrote; no link leads out of the volume.
func (k *podRun) readVolume(volume, path string) ([]byte, error) {
	dir := filepath.Join(k.facts.Dir, "volumes", volume)
	data, err := sysfile.ReadInRoot(dir, path, maxVariablesFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("volume %s has no file %s: %w", volume, path, errs.NotFound)
	}
	return data, err
}

// chooseIDs finds the ids of the pod's user namespace.
func (k *podRun) chooseIDs(ctx context.Context) (err error) {
	if k.pod.Spec.HostUsers == nil || *k.pod.Spec.HostUsers {
		return nil
	}
	err = k.retryUnavailable(ctx, func(ctx context.Context) (err error) {
		k.facts.UserNamespace, err = host.FreeIDs(ctx, k.Conn)
		return err
	})
	if errors.Is(err, errs.Exhausted) {
		return fmt.Errorf("cannot run pod %s/%s: %w", k.pod.Namespace, k.pod.Name, err)
	}
	return err
}

// readFeatures reads the features of the pod's runtime class.
func (k *podRun) readFeatures(ctx context.Context) error {
	var resp *runtimeapi.StatusResponse
	err := k.retryUnavailable(ctx, func(ctx context.Context) (err error) {
		resp, err = k.Conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
		return err
	})
	if err != nil {
		return err
	}
	for _, h := range resp.GetRuntimeHandlers() {
		if h.GetName() == k.Bundle.Handler {
			k.facts.RecursiveReadOnly = h.GetFeatures().GetRecursiveReadOnlyMounts()
		}
	}
	return nil
}
