package provider

import (
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"path"
	"strings"

	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider/command"
)

// PlanHost returns the facts of engine, network and environment for a plan.
func (e *CLI) PlanHost(n Network) plan.Host {
	h := plan.Host{Engine: e.name, Network: n.Name, Env: maps.Clone(e.env)}
	for _, subnet := range n.Subnets {
		h.Subnets = append(h.Subnets, subnet.String())
	}
	if h.Env == nil {
		h.Env = map[string]string{}
	}
	if !e.facts.Remote {
		h.Routes = Routes(e.host)
	}
	e.addProxies(h.Env)
	return h
}

// dockerFile has the fields that are read of docker's configuration.
type dockerFile struct {
	CurrentContext string `json:"currentContext"`
	Proxies        map[string]struct {
		HTTP  string `json:"httpProxy"`
		HTTPS string `json:"httpsProxy"`
		No    string `json:"noProxy"`
	} `json:"proxies"`
}

// addProxies adds the proxies that docker's client gives containers. Its configuration has some per
// address of the daemon, and others for all. A proxy of the environment takes precedence.
func (e *CLI) addProxies(env map[string]string) {
	if !e.dockerConfig {
		return
	}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY"} {
		if env[name] != "" || env[strings.ToLower(name)] != "" {
			return
		}
	}
	proxies := e.dockerFile().Proxies
	own, found := proxies[e.daemon]
	if !found {
		own = proxies["default"]
	}
	for name, value := range map[string]string{"HTTP_PROXY": own.HTTP, "HTTPS_PROXY": own.HTTPS, "NO_PROXY": own.No} {
		if value != "" && env[name] == "" && env[strings.ToLower(name)] == "" {
			env[name] = value
		}
	}
}

// dockerFile reads the configuration of docker's client; docker itself reports one that cannot be
// read.
func (e *CLI) dockerFile() dockerFile {
	var file dockerFile
	dir := e.env["DOCKER_CONFIG"]
	if dir == "" {
		if e.env["HOME"] == "" {
			return file
		}
		dir = path.Join(e.env["HOME"], ".docker")
	}
	text, err := fs.ReadFile(e.host, strings.TrimPrefix(path.Join(dir, "config.json"), "/"))
	if err != nil || json.Unmarshal(text, &file) != nil {
		return dockerFile{}
	}
	return file
}

// dockerHost is the address of the daemon that docker's client talks to. "" is its
// default on this host.
func (e *CLI) dockerHost(ctx context.Context) string {
	if host := e.env["DOCKER_HOST"]; host != "" {
		return host
	}
	name := e.env["DOCKER_CONTEXT"]
	if name == "" {
		name = e.dockerFile().CurrentContext
	}
	if name == "" || name == "default" {
		return "unix:///var/run/docker.sock"
	}
	out, err := command.Output(ctx, e.run, "context", "inspect", "--format", `{{ (index .Endpoints "docker").Host }}`, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
