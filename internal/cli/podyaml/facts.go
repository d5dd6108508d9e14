package podyaml

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/security"
	"github.com/berthrun/berth/internal/cli/podyaml/source"
)

// Facts are what a pod's configuration needs beside its YAML.
type Facts struct {
	// Dir holds what is the pod's own, LogDir its logs, ClaimDir the directories of
	// claims, SeccompDir the profiles that a pod names by a relative path.
	Dir, LogDir, ClaimDir, SeccompDir string
	// PodIPs and HostIPs are for fields of the downward API and the hosts file.
	PodIPs, HostIPs []string
	// NodeName likewise.
	NodeName string
	// HostHosts is the host's hosts file, HostDNS its name servers, which are others than in its
	// /etc/resolv.conf if HostDNSBehindStub.
	HostHosts         string
	HostDNS           *runtimeapi.DNSConfig
	HostDNSBehindStub bool
	// Capacity of the host.
	Capacity source.Capacity
	// CgroupParent is for runtimes that need one; mostly empty.
	CgroupParent string
	// UserNamespace is the host's id of the pod's root, where hostUsers is false.
	UserNamespace uint32
	// RecursiveReadOnly says that the runtime can make mounts read-only with all below.
	RecursiveReadOnly bool
	// ReadVolume reads a file that a container has written into a volume, NotFound for
	// none. It is nil until containers run.
	ReadVolume func(volume, path string) ([]byte, error)
}

func (f *Facts) security() security.Host {
	return security.Host{UserNamespace: f.UserNamespace, SeccompDir: f.SeccompDir}
}

func (f *Facts) node() *source.Node {
	return &source.Node{
		Name: f.NodeName, PodIPs: f.PodIPs, HostIPs: f.HostIPs, Capacity: f.Capacity, ReadVolume: f.ReadVolume,
	}
}
