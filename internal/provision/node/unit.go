package node

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// dropInName sorts after a distribution's own drop-ins and before most users'.
const dropInName = "50-berth-node.conf"

// beforeRuntimes orders a unit before every runtime, so the unit file does not change when one
// runtime replaces another.
const beforeRuntimes = "Before=berth.service containerd.service crio.service docker.service"

// environment writes the environment file of the runtime's unit: options, proxy and
// what the user adds.
func (b *builder) environment() {
	env := map[string]string{}
	maps.Copy(env, b.proxy())
	maps.Copy(env, b.n.Runtime.Environment)
	if len(b.n.Runtime.Options) > 0 {
		env[b.rt.optionsVar] = strings.Join(b.n.Runtime.Options, " ")
	}
	if bin := b.f.Distro.BinDir; b.f.Distro.Immutable && env["PATH"] == "" && !b.rt.packaged {
		env["PATH"] = bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	b.before(tasks.File{
		M:    provision.Meta{Why: "runtime.environment", Needs: slices.Clone(b.installed), Restarts: []string{b.rt.unit}},
		Path: b.envFile(), Content: envFile(env), Mode: 0o600,
		// A proxy may have a password in it.
		Secret: b.n.Proxy.HTTP != "" || b.n.Proxy.HTTPS != "",
	})
}

func (b *builder) envFile() string { return path.Join(facts.OwnDir, b.rt.name+".env") }

// proxy is the environment of a proxy's settings.
func (b *builder) proxy() map[string]string {
	p := b.n.Proxy
	env := map[string]string{}
	for name, value := range map[string]string{"HTTP_PROXY": p.HTTP, "HTTPS_PROXY": p.HTTPS} {
		if value != "" {
			env[name], env[strings.ToLower(name)] = value, value
		}
	}
	if len(env) == 0 {
		return env
	}
	direct := slices.Concat([]string{"localhost", "127.0.0.0/8", "::1", ".svc", ".cluster.local"}, b.n.Network.PodCIDRs, p.NoProxy)
	env["NO_PROXY"] = strings.Join(direct, ",")
	env["no_proxy"] = env["NO_PROXY"]
	return env
}

// envFile renders an EnvironmentFile of systemd. Values have no line breaks.
func envFile(env map[string]string) string {
	var s strings.Builder
	s.WriteString("# Made by `berth node` from the node file. Changes here are undone; put them there.\n")
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", "$", `\$`)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&s, "%s=\"%s\"\n", name, escape.Replace(env[name]))
	}
	return s.String()
}

// runtimeUnit starts the runtime: with our own unit if berth installed the binaries, with a drop-in
// if somebody else owns the unit.
func (b *builder) runtimeUnit() {
	yes := true
	unit := tasks.Unit{
		M:    provision.Meta{Why: "runtime", Needs: slices.Clone(b.ready)},
		Name: b.rt.unit, Enable: &yes, Running: tasks.Started, RestartDisrupts: b.f.Disrupts,
	}
	if b.rt.packaged {
		unit.DropIns = map[string]string{dropInName: b.dropIn()}
	} else {
		unit.Content = b.unitFile()
	}
	if b.rt.name == "berth" && !b.n.Runtime.SkipInstall {
		supervisor := tasks.Unit{
			M:    provision.Meta{Why: "runtime", Needs: slices.Clone(b.ready)},
			Name: facts.SupervisorUnit, Content: b.supervisorFile(), Enable: &yes, Running: tasks.Started,
		}
		b.add(supervisor)
		unit.M.Needs = append(unit.M.Needs, supervisor.ID())
		unit.M.Needs = append(unit.M.Needs, b.beforeBerth(supervisor.ID())...)
	}
	b.add(unit)
	if b.n.BerthOverDocker() {
		b.add(tasks.Unit{
			M:    provision.Meta{Why: "runtime", Needs: append(slices.Clone(b.ready), append(b.beforeBerth(unit.ID()), unit.ID())...)},
			Name: facts.BerthUnit, Content: b.berthOverDockerFile(), Enable: &yes, Running: tasks.Started,
		})
	}
	if b.f.Distro.Immutable && b.rt.packaged {
		b.rerun(unit)
	}
}

// unitFile is the whole unit of a runtime that berth installed.
func (b *builder) unitFile() string {
	bin := path.Join(b.f.Distro.BinDir, b.rt.binary)
	head := map[string][]string{
		"berth":      {"Description=berth: container runtime for the kubelet", "Documentation=https://github.com/berthrun/berth", "After=network.target local-fs.target dbus.service " + facts.SupervisorUnit, "Wants=" + facts.SupervisorUnit, "StartLimitIntervalSec=0"},
		"containerd": {"Description=containerd container runtime", "Documentation=https://containerd.io", "After=network.target local-fs.target dbus.service"},
		"crio":       {"Description=Container Runtime Interface for OCI (CRI-O)", "Documentation=https://cri-o.io", "Wants=network-online.target", "After=network-online.target local-fs.target dbus.service", "Before=kubelet.service"},
		"docker":     {"Description=Docker Application Container Engine", "Documentation=https://docs.docker.com", "Wants=network-online.target", "After=network-online.target local-fs.target dbus.service nftables.service firewalld.service", "StartLimitIntervalSec=60", "StartLimitBurst=3"},
	}[b.rt.name]
	command := map[string]string{
		"berth":      bin + " serve --config " + b.rt.config,
		"containerd": bin,
		"crio":       bin,
		"docker":     bin,
	}[b.rt.name]
	body := []string{
		"Type=notify",
		"EnvironmentFile=-" + b.envFile(),
		"ExecStartPre=-/sbin/modprobe overlay",
		"ExecStart=" + command + " $" + b.rt.optionsVar,
	}
	restart := "5"
	switch b.rt.name {
	case "berth":
		body = append(body, "ExecReload=/bin/kill -HUP $MAINPID", "WatchdogSec=60", "TimeoutStartSec=infinity")
		restart = "1"
	case "crio", "docker":
		body = append(body, "ExecReload=/bin/kill -HUP $MAINPID", "TimeoutStartSec=0")
	}
	body = append(body, "KillMode=process", "Delegate=yes", "Restart=always", "RestartSec="+restart)
	body = append(body, b.limits()...)
	return unitText(section{"Unit", head}, section{"Service", body}, installed())
}

// berthOverDockerFile is the unit of a berth that serves CRI over docker. A restart of docker does
// not restart berth, which connects again.
func (b *builder) berthOverDockerFile() string {
	head := []string{
		"Description=berth: CRI over docker for the kubelet", "Documentation=https://github.com/berthrun/berth",
		"Wants=" + b.rt.unit, "After=network.target local-fs.target dbus.service " + b.rt.unit, "StartLimitIntervalSec=0",
	}
	body := []string{
		"Type=notify", "ExecStart=" + b.berthBinary() + " serve --config " + berthConfigFile,
		"ExecReload=/bin/kill -HUP $MAINPID", "WatchdogSec=60", "TimeoutStartSec=infinity",
		"KillMode=process", "Delegate=yes", "Restart=always", "RestartSec=1",
	}
	body = append(body, b.limits()...)
	return unitText(section{"Unit", head}, section{"Service", body}, installed())
}

// supervisorFile is the unit of berth's second process, which outlives the first.
func (b *builder) supervisorFile() string {
	state := "/run/berth"
	if b.n.Runtime.State != "" {
		state = b.n.Runtime.State
	}
	body := []string{
		"Type=notify", "NotifyAccess=all",
		"EnvironmentFile=-" + b.envFile(),
		"ExecStart=" + path.Join(b.f.Distro.BinDir, "berth-supervisor") + " keep --state " + state + "/supervisor",
		"ExecReload=/bin/kill -HUP $MAINPID",
	}
	if dir, ok := strings.CutPrefix(state, "/run/"); ok {
		body = append(body, "RuntimeDirectory="+dir+"/supervisor", "RuntimeDirectoryMode=0700", "RuntimeDirectoryPreserve=yes")
	}
	body = append(body, "KillMode=process", "Delegate=yes", "Restart=always", "RestartSec=100ms",
		"OOMPolicy=continue", "FileDescriptorStoreMax=16384", "FileDescriptorStorePreserve=yes")
	body = append(body, b.limits()...)
	head := []string{
		"Description=berth supervisor: parent of containers", "Documentation=https://github.com/berthrun/berth",
		"After=local-fs.target dbus.service", "Before=" + b.rt.unit, "StartLimitIntervalSec=0",
	}
	return unitText(section{"Unit", head}, section{"Service", body}, installed())
}

// limits are the resource limits of a runtime's unit, and its slice.
func (b *builder) limits() []string {
	s := b.n.Runtime.Service
	var lines []string
	if s.OOMScore != nil {
		lines = append(lines, "OOMScoreAdjust="+strconv.Itoa(*s.OOMScore))
	}
	for _, limit := range []struct{ name, value string }{
		{"LimitNOFILE", s.NoFile}, {"LimitNPROC", s.NProc}, {"LimitCORE", s.Core}, {"LimitMEMLOCK", s.Memlock}, {"TasksMax", s.Tasks},
	} {
		if limit.value != "" {
			lines = append(lines, limit.name+"="+limit.value)
		}
	}
	if b.n.Runtime.CgroupParent != "" && b.systemdCgroup() {
		lines = append(lines, "Slice="+strings.TrimPrefix(b.n.Runtime.CgroupParent, "/"))
	}
	return lines
}

// dropIn changes a unit that somebody else owns. It replaces the command only if needed.
func (b *builder) dropIn() string {
	body := []string{"EnvironmentFile=-" + b.envFile(), "ExecStartPre=-/sbin/modprobe overlay"}
	var command string
	switch {
	case b.f.Distro.Family == "flatcar" && b.rt.name == "containerd":
		body = append(body, "Environment=CONTAINERD_CONFIG="+b.rt.config)
		command = "/usr/bin/containerd --config " + b.rt.config
	case len(b.n.Runtime.Options) == 0:
	case b.rt.name == "docker":
		command = "/usr/bin/dockerd -H fd://"
	case b.rt.name == "berth":
		command = path.Join(b.f.Distro.BinDir, "berth") + " serve --config " + b.rt.config
	default:
		command = "/usr/bin/" + b.rt.binary
	}
	if command != "" {
		body = append(body, "ExecStart=", "ExecStart="+command+" $"+b.rt.optionsVar)
	}
	body = append(body, "KillMode=process", "Delegate=yes", "Restart=always", "RestartSec=5")
	body = append(body, b.limits()...)
	return unitText(section{"Unit", []string{"After=local-fs.target dbus.service"}}, section{"Service", body})
}

// rerun applies the node file again in the background after an immutable system's runtime was
// restarted with our drop-in: berth may have been running in one of its containers, which ended
// with the restart.
func (b *builder) rerun(unit tasks.Unit) {
	b.add(tasks.Command{
		M:    provision.Meta{Why: "runtime", Needs: []string{unit.ID(), "unit " + bootUnit}},
		Name: "apply-again",
		Args: []string{"systemctl", "start", "--no-block", bootUnit},
		// The command contains the drop-in's hash, so it runs when the drop-in changes.
		Env: []string{"BERTH_NODE_DROP_IN=" + digest(unit.Content, unit.DropIns[dropInName])},
	})
}

// installed is the [Install] section of a unit that starts at boot.
func installed() section { return section{"Install", []string{"WantedBy=multi-user.target"}} }

// section is a part of a unit file.
type section struct {
	name  string
	lines []string
}

func unitText(sections ...section) string {
	var s strings.Builder
	s.WriteString("# Made by `berth node` from the node file. Changes here are undone; put them there.\n")
	for i, part := range sections {
		if i > 0 {
			s.WriteByte('\n')
		}
		fmt.Fprintf(&s, "[%s]\n%s\n", part.name, strings.Join(part.lines, "\n"))
	}
	return s.String()
}
