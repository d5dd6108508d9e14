package plan

import (
	"strings"

	"github.com/berthrun/berth/internal/cluster/config"
)

// environment is what every container of a cluster has in its environment.
func environment(c *config.Cluster, h Host) map[string]string {
	env := proxies(c, h)
	// systemd reads it.
	switch h.Engine {
	case "podman":
		env["container"] = "podman"
	case "berth":
		env["container"] = "oci"
	default:
		env["container"] = "docker"
	}
	if search := c.Networking.DNSSearch; search != nil {
		env[searchVariable] = strings.Join(*search, " ")
	}
	return env
}

// proxies are the proxy variables of the host. Destinations inside of the cluster need no proxy:
// its subnets, its nodes, the DNS names of its services.
func proxies(c *config.Cluster, h Host) map[string]string {
	env := map[string]string{}
	set := func(name, value string) {
		env[name], env[strings.ToLower(name)] = value, value
	}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		value := h.Env[name]
		if value == "" {
			value = h.Env[strings.ToLower(name)]
		}
		if value != "" {
			set(name, value)
		}
	}
	if len(env) == 0 {
		return env
	}
	direct := append([]string(nil), h.Subnets...)
	if own := env["NO_PROXY"]; own != "" {
		direct = append(direct, own)
	}
	direct = append(direct, c.Networking.ServiceSubnet, c.Networking.PodSubnet)
	for _, n := range c.Nodes {
		direct = append(direct, c.ContainerName(n))
	}
	if c.HasBalancer() {
		direct = append(direct, c.BalancerName())
	}
	if c.Registry.Enabled {
		direct = append(direct, RegistryName)
	}
	direct = append(direct, ".svc", ".svc.cluster", ".svc.cluster.local")
	set("NO_PROXY", strings.Join(direct, ","))
	return env
}
