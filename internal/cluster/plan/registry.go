package plan

import "github.com/berthrun/berth/internal/cluster/config"

// The registry that clusters of one engine share.
const (
	// RegistryName is the name of its container, and the host name by which nodes reach it.
	RegistryName = config.RegistryName
	// RegistryGroup is its value for the label of the cluster's name; no cluster can have this
	// name.
	RegistryGroup = "_registry"
	// RegistryRole is its role.
	RegistryRole = "registry"
	// RegistryPort is its port on the network of nodes.
	RegistryPort = 5000
	// RegistryDir has its images, on a volume.
	RegistryDir = "/var/lib/berth-registry"
)

// Registry plans the container of the registry; port is a port of the host's loopback, or
// config.FreePort. It needs no privilege.
func Registry(image string, port int) Container {
	return Container{
		Name: RegistryName, Role: RegistryRole, Image: image,
		Labels:  map[string]string{LabelCluster: RegistryGroup, LabelRole: RegistryRole},
		Volumes: []Volume{{Name: RegistryName, Target: RegistryDir}},
		// A client that can push decides what runs in the clusters: only this host.
		Ports: []Port{{Listen: "127.0.0.1", Host: port, Container: RegistryPort, Protocol: config.TCP, Field: "registry.port"}},
	}
}
