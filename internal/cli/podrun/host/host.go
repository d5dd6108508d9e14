// Package host finds the facts about this host and its runtime that a pod's configuration needs.
package host

import (
	"net"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/source"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// maxEtcFile bounds what is read of a file in /etc, in bytes.
const maxEtcFile = 1 << 20

// Facts are what pods see of the host. What cannot be found is empty.
type Facts struct {
	// IPs are addresses that are not loopback, one of each family.
	IPs []string
	// Name is the hostname.
	Name string
	// Hosts is the text of /etc/hosts.
	Hosts string
	// DNS is what pods get: what /etc/resolv.conf says, unless DNSBehindStub.
	DNS *runtimeapi.DNSConfig
	// DNSBehindStub says that /etc/resolv.conf names systemd-resolved on loopback, which pods do not reach. DNS has the
	// servers behind it.
	DNSBehindStub bool
	// Capacity is the limit of containers that have none.
	Capacity source.Capacity
}

// Gather finds the facts. Storage is that of the file system below dir.
func Gather(dir string) Facts {
	f := Facts{IPs: hostIPs(), Capacity: capacity(dir)}
	f.Name, _ = os.Hostname() // a host without a name has pods without it
	if hosts, err := sysfile.ReadRegular("/etc/hosts", maxEtcFile); err == nil {
		f.Hosts = string(hosts)
	}
	f.DNS, f.DNSBehindStub = readDNS("/")
	return f
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
