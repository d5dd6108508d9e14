package facts

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
	"github.com/berthrun/berth/internal/provision/node/handover"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// detectDisruption says what a restart with the node file's configuration does to running pods; ""
// if they keep running, or if none run.
func detectDisruption(ctx context.Context, host provision.Host, n *nodefile.Node) string {
	if !host.Live() {
		return ""
	}
	if n.Runtime.Name == "docker" {
		return dockerDisruption(ctx, host, n)
	}
	changes := pathChanges(host.Files(), &n.Runtime)
	if len(changes) == 0 {
		return ""
	}
	var lost []string
	if socket := crisock.Configured(host.Files(), n.Runtime.Name); provision.Exists(host.Files(), socket) {
		// A runtime that does not answer has no pods that it could lose.
		if pods, err := crisock.Sandboxes(ctx, socket); err == nil && len(pods) > 0 {
			lost = append(lost, strconv.Itoa(len(pods)))
		}
	}
	if n.Runtime.Name == "containerd" { // docker's may be in the same
		if n := len(dockersContainers(ctx, host)); n > 0 {
			lost = append(lost, fmt.Sprintf("%d containers of docker", n))
		}
	}
	if len(lost) == 0 {
		return ""
	}
	return fmt.Sprintf("%s are lost to the runtime: %s", strings.Join(lost, " and "), strings.Join(changes, ", "))
}

// dockersContainers lists the containers that run in docker. A docker that does not run, or does
// not answer, has none.
func dockersContainers(ctx context.Context, host provision.Host) []handover.Container {
	// Do not connect when it is not running: its socket would start it.
	if state, err := host.Units().State(ctx, dockerUnit); err != nil || state.Active != "active" {
		return nil
	}
	list, err := handover.Containers{Socket: handover.DockerSocket}.Running(ctx)
	if err != nil {
		return nil
	}
	return list
}

// dockerDisruption queries the running engine: the settings that it was started with count, not
// those of its file.
func dockerDisruption(ctx context.Context, host provision.Host, n *nodefile.Node) string {
	out, err := host.Run(ctx, provision.Command{Args: []string{
		"docker", "info", "--format", "{{.ContainersRunning}} {{.LiveRestoreEnabled}} {{.CgroupDriver}} {{.DockerRootDir}}",
	}})
	if err != nil {
		return "" // it is not there, or does not run
	}
	said := strings.Fields(string(out))
	if len(said) != 4 || said[0] == "0" {
		return ""
	}
	running, liveRestore, driver, root := said[0], said[1], said[2], said[3]
	switch {
	case liveRestore == "false":
		return running + " containers stop: dockerd runs without live-restore until then"
	case n.Runtime.Root != "" && root != n.Runtime.Root:
		return fmt.Sprintf("%s containers are lost to the runtime: runtime.root was %s", running, root)
	case driver != cgroupDriver(&n.Runtime):
		return fmt.Sprintf("%s containers are lost to the runtime: runtime.cgroupDriver was %s", running, driver)
	}
	return ""
}

func cgroupDriver(rt *nodefile.Runtime) string {
	if rt.CgroupDriver == "cgroupfs" {
		return "cgroupfs"
	}
	return "systemd"
}

// pathChanges compares the paths that pods depend on with the configuration on the machine.
func pathChanges(files provision.Files, rt *nodefile.Runtime) []string {
	config := map[string]string{
		"berth": "/etc/berth/berth.toml", "containerd": "/etc/containerd/config.toml", "crio": "/etc/crio/crio.conf.d/10-berth-node.conf",
	}[rt.Name]
	prefix := map[string][]string{"crio": {"crio"}}[rt.Name]
	setting := func(keys ...string) string {
		return crisock.Setting(files, crisock.Place{File: config, Keys: append(prefix[:len(prefix):len(prefix)], keys...)})
	}
	var changes []string
	for _, field := range []struct{ name, wanted, usual string }{
		{"root", rt.Root, map[string]string{"berth": "/var/lib/berth", "containerd": "/var/lib/containerd", "crio": "/var/lib/containers/storage"}[rt.Name]},
		{"state", rt.State, map[string]string{"berth": "/run/berth", "containerd": "/run/containerd"}[rt.Name]},
	} {
		was, wanted := setting(field.name), field.wanted
		if was == "" {
			was = field.usual
		}
		if wanted == "" {
			wanted = field.usual
		}
		if was != wanted {
			changes = append(changes, fmt.Sprintf("runtime.%s was %s", field.name, was))
		}
	}
	driver := ""
	switch rt.Name {
	case "berth":
		driver = setting("runtime", "cgroup_driver")
	case "crio":
		driver = setting("runtime", "cgroup_manager")
	case "containerd":
		for _, plugin := range []string{"io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"} {
			said := setting("plugins", plugin, "containerd", "runtimes", "runc", "options", "SystemdCgroup")
			if said != "" {
				driver = map[string]string{"true": "systemd", "false": "cgroupfs"}[said]
			}
		}
	}
	if driver != "" && driver != cgroupDriver(rt) {
		changes = append(changes, "runtime.cgroupDriver was "+driver)
	}
	return changes
}
