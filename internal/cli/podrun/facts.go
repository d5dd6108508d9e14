package podrun

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/source"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// DefaultClaimBase holds a directory for each claim, DefaultSeccompDir the profiles of
// relative paths, where a kubelet has them.
const (
	DefaultClaimBase  = "/var/lib/berth-claims"
	DefaultSeccompDir = "/var/lib/kubelet/seccomp"
)

// maxEtcFile bounds what is read of the host's /etc, and of files that containers write.
const maxEtcFile = 1 << 20

// gather asks the host what pods are told of it.
func (k *keeper) gather() {
	k.facts.HostIPs = hostIPs()
	k.facts.NodeName, _ = os.Hostname() // a host without a name has pods without it
	if hosts, err := sysfile.ReadRegular("/etc/hosts", maxEtcFile); err == nil {
		k.facts.HostHosts = string(hosts)
	}
	if resolv, err := sysfile.ReadRegular("/etc/resolv.conf", maxEtcFile); err == nil {
		k.facts.HostDNS = parseResolvConf(string(resolv))
	}
	k.facts.Capacity = capacity(k.VolumeBase)
	k.facts.ReadVolume = k.readVolume
}

// parseResolvConf takes from resolv.conf what pods are told. The last search line wins.
func parseResolvConf(text string) *runtimeapi.DNSConfig {
	dns := &runtimeapi.DNSConfig{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			dns.Servers = append(dns.Servers, words[1])
		case "search", "domain":
			dns.Searches = words[1:]
		case "options":
			dns.Options = append(dns.Options, words[1:]...)
		}
	}
	return dns
}

// capacity of the host; what cannot be read is 0.
func capacity(dir string) source.Capacity {
	c := source.Capacity{MilliCPU: int64(runtime.NumCPU()) * 1000}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		c.Memory = int64(info.Totalram) * int64(info.Unit) //nolint:unconvert // 32 bits on some architectures
	}
	for ; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err == nil {
			c.Storage = int64(st.Blocks) * st.Bsize //nolint:unconvert // likewise
			break
		}
	}
	return c
}

// readVolume reads a file that a container wrote; no link leads out of the volume.
func (k *keeper) readVolume(volume, path string) ([]byte, error) {
	dir := filepath.Join(k.facts.Dir, "volumes", volume)
	data, err := sysfile.ReadInRoot(dir, path, maxEtcFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("volume %s has no file %s: %w", volume, path, errs.NotFound)
	}
	return data, err
}

// Pods of user namespaces have their ids in the upper half of what there is, where a
// kubelet, which begins below, comes last.
const (
	idsOfPod  = 1 << 16
	firstSlot = 1 << 14
	slots     = 1 << 14
)

// chooseIDs finds ids for the pod's user namespace that no other pod of the runtime has.
func (k *keeper) chooseIDs(ctx context.Context) error {
	if k.pod.Spec.HostUsers == nil || *k.pod.Spec.HostUsers {
		return nil
	}
	resp, err := k.Conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	taken := map[uint32]bool{}
	for _, other := range resp.Items {
		status, err := k.Conn.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: other.Id})
		if errors.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		for _, m := range status.Status.GetLinux().GetNamespaces().GetOptions().GetUsernsOptions().GetUids() {
			for id := uint64(m.HostId) / idsOfPod; id*idsOfPod < uint64(m.HostId)+uint64(m.Length); id++ {
				taken[uint32(id)] = true
			}
		}
	}
	start := rand.Uint32N(slots)
	for i := range uint32(slots) {
		slot := firstSlot + (start+i)%slots
		if !taken[slot] {
			k.facts.UserNamespace = slot * idsOfPod
			return nil
		}
	}
	return fmt.Errorf("cannot run pod %s/%s: no ids are left for its user namespace: %w", k.pod.Namespace, k.pod.Name, errs.Exhausted)
}

// learnFeatures asks what the pod's runtime class can do.
func (k *keeper) learnFeatures(ctx context.Context) error {
	resp, err := k.Conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
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

// hostIPs are addresses of this host that are not loopback, one of each family.
func hostIPs() []string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var ips []string
	families := map[bool]bool{}
	for _, addr := range addrs {
		ipNet, ok := addr.(*net.IPNet)
		if !ok || !ipNet.IP.IsGlobalUnicast() || families[ipNet.IP.To4() != nil] {
			continue
		}
		families[ipNet.IP.To4() != nil] = true
		ips = append(ips, ipNet.IP.String())
	}
	return ips
}
