package runtimeconf

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/registries"
)

// Docker returns the keys of daemon.json that the node file sets; other keys of the file belong to
// others.
func Docker(m Model) (map[string]any, error) {
	driver := "cgroupfs"
	if m.SystemdCgroup {
		driver = "systemd"
	}
	top := table{
		"exec-opts": []any{"native.cgroupdriver=" + driver},
		// Containers outlive a restart of the engine.
		"live-restore": true,
	}
	setText(top, "data-root", m.Root)
	setText(top, "exec-root", m.State)
	setText(top, "log-level", m.LogLevel)
	setText(top, "storage-driver", m.Snapshotter)
	if m.SELinux {
		top["selinux-enabled"] = true
	}
	if len(m.CDISpecDirs) > 0 && HasCDI("docker", m.Version) {
		top["cdi-spec-dirs"] = anyList(m.CDISpecDirs)
		if m.Version.Less(28, 0) {
			top["features"] = table{"cdi": true}
		}
	}
	for _, h := range m.Handlers {
		sub(top, "runtimes")[h.Name] = dockerHandler(h)
	}
	setText(top, "default-runtime", m.DefaultHandler)
	dockerRegistries(top, m.Registries)
	if m.CNI.MTU > 0 && !m.ServesPods {
		top["mtu"] = m.CNI.MTU
	}
	if m.Logs != nil {
		top["log-driver"] = "json-file"
		top["log-opts"] = table{"max-size": dockerSize(m.Logs.MaxSize), "max-file": strconv.Itoa(m.Logs.MaxFile)}
	}
	prune(top)
	if err := add(top, m.Additions); err != nil {
		return nil, err
	}
	return top, nil
}

// HasCDI reports whether a runtime of a version takes CDI specification directories. dockerd
// refuses unknown keys, so HasCDI is false for an unknown version (zero) of docker.
func HasCDI(runtime string, v nodefile.Version) bool {
	switch runtime {
	case "docker":
		return !v.IsZero() && !v.Less(25, 0)
	case "containerd":
		return v.IsZero() || !v.Less(1, 7)
	default:
		return true
	}
}

func dockerHandler(h nodefile.Handler) table {
	t := table{}
	if h.Type == "shim" {
		setText(t, "runtimeType", h.RuntimeType)
		if len(h.Options) > 0 {
			t["options"] = h.Options
		}
		return t
	}
	setText(t, "path", h.Path)
	return t
}

func dockerRegistries(top table, all []registries.Registry) {
	var mirrors, insecureHosts []any
	for _, reg := range all {
		if insecure(reg.Server, reg.SkipVerify) {
			insecureHosts = append(insecureHosts, hostOnly(location(reg.Server, reg.Host)))
		}
		for _, m := range reg.Mirrors {
			mirrors = append(mirrors, m.URL)
			if insecure(m.URL, m.SkipVerify) {
				insecureHosts = append(insecureHosts, hostOnly(location(m.URL, "")))
			}
		}
	}
	if mirrors != nil {
		top["registry-mirrors"] = mirrors
	}
	if insecureHosts != nil {
		top["insecure-registries"] = insecureHosts
	}
}

// dockerSize turns 10Mi into 10m; both count in powers of two.
func dockerSize(size string) string {
	for _, unit := range []string{"K", "M", "G"} {
		for _, suffix := range []string{unit + "i", unit} {
			if number, ok := strings.CutSuffix(size, suffix); ok {
				return fmt.Sprintf("%s%s", number, strings.ToLower(unit))
			}
		}
	}
	return size
}

func anyList(list []string) []any {
	all := make([]any, len(list))
	for i, item := range list {
		all[i] = item
	}
	return all
}
