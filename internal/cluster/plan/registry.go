package plan

import "github.com/berthrun/berth/internal/cluster/config"

// The registry that clusters of one engine share.
const (
	// RegistryName is its container's, and the host name by which nodes reach it.
	RegistryName = "berth-registry"
	// RegistryGroup stands where other containers have the name of their cluster; no
	// cluster can be called so.
	RegistryGroup = "_registry"
	// RegistryRole is its role.
	RegistryRole = "registry"
	// RegistryPort is its port on the network of nodes.
	RegistryPort = 5000
	// RegistryDir has its images, on a volume.
	RegistryDir = "/var/lib/berth-registry"
)

// Registry plans the container of the registry; port is that of the host's loopback, or
// config.FreePort. It needs no privilege.
func Registry(image string, port int) Container {
	return Container{
		Name: RegistryName, Role: RegistryRole, Image: image,
		Labels:  map[string]string{LabelCluster: RegistryGroup, LabelRole: RegistryRole},
		Volumes: []Volume{{Name: RegistryName, Target: RegistryDir}},
		// Whoever may push decides what runs in the clusters: nobody but this host.
		Ports: []Port{{Listen: "127.0.0.1", Host: port, Container: RegistryPort, Protocol: config.TCP, Field: "registry.port"}},
	}
}
